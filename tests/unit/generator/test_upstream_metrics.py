from services.generator.engines.upstream_metrics import DraftTotals, parse_draft_totals

TOLD = """\
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 120.0
vllm:spec_decode_num_draft_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 81.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 1.0e+01
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 9
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 50.0
vllm:num_requests_running{engine="0",model_name="m"} 3.0
"""


def test_all_engines_count():
    assert parse_draft_totals(TOLD) == DraftTotals(130, 90)


def test_who_drafts_nothing_tells_nothing():
    assert parse_draft_totals("vllm:num_requests_running 3.0\n") is None
    assert parse_draft_totals("") is None
    assert parse_draft_totals("vllm:spec_decode_num_draft_tokens_total e+\n") is None
    assert parse_draft_totals("vllm:spec_decode_num_draft_tokens_total 1e999\n") is None
    assert parse_draft_totals(TOLD + "vllm:spec_decode_num_draft_tokens_total 1e999\n") == DraftTotals(130, 90)
