# What a finding means. Input: tenant, side ("input" or "output"), category, rule, tier (no text of anyone's).
package railbus.findings

import rego.v1

tenant := object.get(data.tenants, input.tenant, {})

by_tenant := object.get(tenant, ["findings", input.side, input.category], "")

by_category := object.get(data.findings, [input.side, input.category], "")

# A category that nobody thought of is treated as the worst one.
strictest := {"input": "deny", "output": "stop"}

action := by_tenant if {
	by_tenant != ""
} else := by_category if {
	by_category != ""
} else := strictest[input.side]

default egress := "allowed"

egress := "forbidden" if input.category in data.stays_home

decision := {"action": action, "egress": egress}
