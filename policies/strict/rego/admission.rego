# Who may ask what. Input: tenant, model, lane, attempt, prompt_chars, max_tokens, mode, egress (no text of anyone's).
package railbus.admission

import rego.v1

default_tenant := data.tenants["*"]

tenant := object.union(default_tenant, object.get(data.tenants, input.tenant, {}))

reasons contains "tenant" if not tenant.enabled

reasons contains "model" if not model_enabled

reasons contains "tokens" if input.max_tokens > tenant.max_tokens

reasons contains "prompt" if input.prompt_chars > tenant.max_prompt_chars

model_enabled if "*" in tenant.models

model_enabled if input.model in tenant.models

default egress := "forbidden"

egress := "allowed" if {
	tenant.egress == "allowed"
	input.egress == "allowed"
}

decision := {
	"allow": count(reasons) == 0,
	"reasons": [reason | some reason in reasons],
	"egress": egress,
	"delivery": tenant.delivery,
}
