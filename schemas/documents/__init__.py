"""Generate JSON Schemas, the AsyncAPI document and the tables of ``schemas/README.md`` from ``schemas.registry``."""
