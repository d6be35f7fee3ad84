"""Tests of the page in a real browser: text that was taken back, resumed answers, and a server that does not answer."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.browser import PROGRAM, browsing
from tests.integration.edge.lab import writer_for
from tests.integration.edge.test_newer_recall import write_as_newer
from tests.support.processes import ServiceProcess

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

ASK = 'document.querySelector("#ask").requestSubmit()'
ANSWER = 'document.querySelector("#answer").textContent'
WHOLE = "document.documentElement.outerHTML + JSON.stringify(screen_.pieces)"
CTRL_ENTER = """document.querySelector("#prompt").dispatchEvent(
    new KeyboardEvent("keydown", {key: "Enter", ctrlKey: true}))"""
NEEDS_KEY = 'document.querySelector("#key-label")?.hidden === false'
IDLE = 'document.querySelector("#answer").ariaBusy === "false"'
CONNECTION = 'document.querySelector("#connection")?.textContent'
STRUCK = """[...document.querySelectorAll("#answer del")].map(node => [node.textContent, node.title,
    getComputedStyle(node).textDecorationLine])"""


async def connected(page):
    await page.until(f'{CONNECTION} === "connected"')


async def asked(lab, page):
    await connected(page)
    await page.run(ASK)
    return writer_for(await lab.next_request(), checked=True)


async def picture(page, name):
    """Save a picture of the page in the folder that ``RAILBUS_TEST_PICTURES`` names, if this variable is set."""
    if folder := os.environ.get("RAILBUS_TEST_PICTURES"):
        (Path(folder) / name).write_bytes(await page.picture())


@pytest.mark.parametrize("operator", [False, True])
async def test_only_an_operators_page_keeps_text_that_was_taken_back(lab, operator):
    url = await lab.edge(operator_page=operator)
    async with browsing(url) as page:
        writer = await asked(lab, page)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("call "), writer.chunk("555-0100 now"))
        await page.until(f'{ANSWER} === "call 555-0100 now"')
        await lab.write(writer.recall(5, 13))
        await page.until(f"{ANSWER}.includes('[gone]')")
        await picture(page, f"redacted-{'operator' if operator else 'person'}.png")
        if operator:
            ((text, why, line),) = await page.run(STRUCK)
            assert (text, line) == ("555-0100", "line-through")
            assert "rule card" in why
        else:
            assert await page.run(ANSWER) == "call [gone] now"
            assert "555-0100" not in await page.run(WHOLE)
        await lab.write(writer.recall(0, 17, action="stop", replacement="This answer was withdrawn by policy."))
        await page.until(f"{ANSWER}.includes('withdrawn by policy')")
        await picture(page, f"withdrawn-{'operator' if operator else 'person'}.png")
        if operator:
            assert (await page.run(STRUCK))[0][0] == "call "
        else:
            assert await page.run(ANSWER) == "This answer was withdrawn by policy."
            whole = await page.run(WHOLE)
            assert "555-0100" not in whole
            assert "call " not in whole


async def test_offsets_stay_right_after_text_is_taken_back(lab):
    async with browsing(await lab.edge()) as page:
        writer = await asked(lab, page)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("a 555 b "), writer.chunk("card 4111 c"))
        await page.until(f"{ANSWER}.endsWith('4111 c')")
        await lab.write(writer.recall(2, 5, replacement="[x]"), writer.recall(13, 17, replacement="[long text]"))
        await page.until(f"{ANSWER}.includes('long text')")
        await lab.write(writer.chunk(" end"), writer.finished(), writer.cleared(), writer.closed())
        await page.until(f"{ANSWER}.endsWith('end')")
        assert await page.run(ANSWER) == "a [x] b card [long text] c end"


@pytest.mark.parametrize("operator", [False, True])
async def test_text_is_hidden_if_the_edge_cannot_read_a_recall(lab, operator):
    async with browsing(await lab.edge(operator_page=operator)) as page:
        writer = await asked(lab, page)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("call 555-0100"))
        await page.until(f'{ANSWER} === "call 555-0100"')
        await write_as_newer(lab, writer.recall(5, 13))
        await page.until(f'{ANSWER} === ""')
        assert "555-0100" not in await page.run(WHOLE)
        said = await page.run('document.querySelector("#outcome").textContent')
        assert said.startswith("The text is hidden. ")


async def test_a_request_stopped_before_it_is_accepted_is_not_shown(lab):
    async with browsing(await lab.edge()) as page:
        await connected(page)
        prompt = 'document.querySelector("#prompt").value'
        await page.run(f'{prompt} = "1"; {ASK}; document.querySelector("#stop").click(); {prompt} = "2"; {ASK}')
        requests = [await lab.next_request() for _ in range(2)]
        first, second = map(writer_for, sorted(requests, key=lambda request: request.messages[0].content))
        assert (await lab.detached(first.request_id)).reason == "gone"
        for writer, text in ((first, "first"), (second, "second")):
            await lab.write(writer.started(), writer.chunk(text), writer.finished(), writer.closed())
        await page.until('document.querySelector("#outcome").textContent === "completed"')
        assert await page.run(ANSWER) == "second"


async def test_ctrl_enter_asks_nothing_while_an_answer_comes(lab):
    url = await lab.edge()
    async with browsing(url) as page:
        writer = await asked(lab, page)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("one "))
        await page.until(f'{ANSWER} === "one "')
        await page.run(CTRL_ENTER)
        await lab.write(writer.chunk("two"), writer.finished(), writer.cleared(), writer.closed())
        await page.until('document.querySelector("#outcome").textContent === "completed"')
        assert await page.run(ANSWER) == "one two"
        await page.run(CTRL_ENTER)
        await lab.answer("next")
        await page.until(f'{ANSWER} === "next"')


async def test_a_late_reply_to_a_resume_does_not_reach_the_next_answer(lab):
    async with browsing(await lab.edge()) as page:
        writer = await asked(lab, page)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("one "))
        await page.until(f'{ANSWER} === "one "')
        await page.run("""(() => {  // messages are on their way for longer than a person needs for two clicks
            const deliver = take, late = [];
            take = message => late.push(message);
            window.arrived = kind => late.some(message => message.type === kind || message.op === kind);
            window.deliver = () => { take = deliver; late.forEach(take); };
            socket.close(); })()""")
        await page.until('arrived("accepted")')
        await lab.write(writer.chunk("two"))
        await page.until('arrived("show")')
        await page.run(f'document.querySelector("#stop").click(); {ASK}; deliver()')
        next_writer = writer_for(await lab.next_request(), checked=True)
        await lab.write(next_writer.started(), next_writer.allowed(), next_writer.chunk("next"))
        await page.until(f'{ANSWER}.includes("next")')
        assert await page.run(ANSWER) == "next"


async def test_the_page_resumes_again_if_the_edge_refuses_for_now(lab):
    url = await lab.edge(resumes_per_minute=30, resume_burst=1)
    async with browsing(url) as page:
        writer = await asked(lab, page)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("one "))
        await page.until(f'{ANSWER} === "one "')
        async with lab.http.get(f"{url}/v1/requests/{writer.request_id}/events") as other:
            assert other.status == 200  # it takes the only resume of this moment
            await page.run("socket.close()")
            await page.until('document.querySelector("#outcome").textContent.startsWith("Too many resumes")')
            await lab.write(writer.chunk("two"), writer.finished(), writer.cleared(), writer.closed())
            await page.until('document.querySelector("#outcome").textContent === "completed"')
        assert await page.run(ANSWER) == "one two"


async def test_a_page_that_was_loaded_again_resumes_once_it_has_the_key(lab, keys_file):
    async with browsing(await lab.edge(api_keys_file=keys_file)) as page:
        await page.until(NEEDS_KEY)
        await page.run(f'document.querySelector("#key").value = "k-a"; {ASK}')
        writer = writer_for(await lab.next_request(), checked=True)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("one "))
        await page.until(f'{ANSWER} === "one "')
        await page.reload()
        for key in ("wrong", "k-a"):
            await page.until(f"{NEEDS_KEY} && document.activeElement.id === 'key' && {IDLE}")
            await page.run('document.querySelector("#key").select()')
            await page.call("Input.insertText", text=key)
            await page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r", windowsVirtualKeyCode=13)
            said = "The API key is not valid." if key == "wrong" else ""
            await page.until(f'document.querySelector("#outcome").textContent === "{said}"', within_s=8)
        await lab.write(writer.chunk("two"), writer.finished(), writer.cleared(), writer.closed())
        await page.until('document.querySelector("#outcome").textContent === "completed"')
        assert await page.run(ANSWER) == "one two"
        assert await page.run("location.hash") == f"#{writer.request_id}"


@pytest.mark.parametrize(("text", "direction"), [("שלום, עולם!", "rtl"), ("Hello, world!", "ltr")])
async def test_an_answer_is_laid_out_in_the_direction_of_its_text(lab, text, direction):
    async with browsing(await lab.edge()) as page:
        writer = await asked(lab, page)
        await lab.write(writer.started(), writer.allowed(), writer.chunk(text))
        await page.until(f'{ANSWER} === "{text}"')
        assert await page.run('getComputedStyle(document.querySelector("#answer")).direction') == direction


async def test_the_strip_of_a_long_answer_stays_small(lab):
    async with browsing(await lab.edge()) as page:
        writer = await asked(lab, page)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("word "))
        await page.until(f'{ANSWER} === "word "')
        show = 'apply({op: "show", text: "word ", tokens: 1}, request.last)'
        await page.run(f"for (let number = 0; number < 5_000; number++) {show}")
        await lab.write(writer.recall(0, 4))
        await page.until('document.querySelector("#strip line.bad") !== null')
        assert await page.run("document.querySelectorAll(\"#strip line[class='']\").length") <= 991


async def test_the_page_says_that_a_frozen_server_does_not_answer(broker):
    edge = ServiceProcess(
        "services.edge", RAILBUS_KAFKA_BOOTSTRAP=broker.address, RAILBUS_PARTITIONS="4", RAILBUS_EDGE_PORT="0"
    )
    try:
        url = (await edge.ready()).split()[-1]
        async with browsing(url) as page:
            await connected(page)
            edge.signal(signal.SIGSTOP)
            await page.until(f'{CONNECTION} === "no answer from the server; reconnecting"', within_s=60)
            await picture(page, "frozen.png")
            edge.signal(signal.SIGCONT)
            await connected(page)
    finally:
        edge.kill()
