"""Generate JSON Schemas, the AsyncAPI document and the README's tables from ``schemas.registry``."""
