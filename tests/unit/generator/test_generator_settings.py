"""Test that each setting of the generator reaches the worker's configuration."""

from schemas.topics import REQUESTS, REQUESTS_BATCH
from services.generator.settings import GeneratorSettings
from services.worker.scheduler import WorkerConfig


def test_settings():
    given = GeneratorSettings(
        generator_slots=5, generator_batch_slots=3, generator_queue=7, generator_drain_ms=1_500,
        generator_instance="g1", input_gate="off", output_check="on",
    )  # fmt: skip
    assert given.worker_config() == WorkerConfig(
        name="generator", topic=REQUESTS, batch=REQUESTS_BATCH, slots=5, batch_slots=3, queue=7, drain_s=1.5,
        input_gate="off", output_check="on", instance="g1",
    )  # fmt: skip


def test_both_checks_are_on_by_default():
    found = GeneratorSettings().worker_config()
    assert (found.input_gate, found.output_check, found.slots, found.batch_slots) == ("hold", "on", 0, 0)
