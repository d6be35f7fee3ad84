"use strict";
// One page, one websocket: sends requests, applies ops as they arrive, and resumes an answer after a disconnect.

const $ = (id) => document.getElementById(id);
const NO_HELLO = 1008;
const RETRY_MS = [100, 200, 500, 1000, 2000];
const BAD = new Set(["replace", "withdraw", "refuse"]);
const WARN = new Set(["restart", "catch_up"]);
const MAX_ROWS = 400;
const MAX_REASONS = 50;

const AGAIN_MS = 2000;
/** Errors that do not last: the request is on the log, so a resume that was refused with one of them is sent again. */
const FOR_NOW = new Set(["busy", "log_unavailable", "not_ready", "rate_limit_exceeded", "too_many_streams"]);
/** The edge cannot read a decision about the answer. The shown text may have been taken back, so it must not stay. */
const HIDE = "newer_version";

const PING_MS = 5000;
const SILENT_MS = 10000; // no answer to a ping for so long: the server is frozen, or the network is gone

/**
 * The answer as pieces of text. A piece that is taken back is forgotten. Only in the operator's view it stays visible,
 * struck through; it does not count in offsets.
 */
class Screen {
  constructor(box, keepsGone) { this.box = box; this.keepsGone = keepsGone; this.clear(); }

  clear() { this.pieces = []; this.box.replaceChildren(); this.tail = null; }

  show(text) {
    if (!text) return;
    if (!this.tail) {
      this.pieces.push({ text: "", kind: "text" });
      this.tail = this.box.appendChild(document.createTextNode(""));
    }
    this.pieces.at(-1).text += text;
    this.tail.appendData(text);
  }

  /** Replace code points [start, end) of the visible text with `text`. */
  replace(start, end, text, why) {
    const next = [];
    let at = 0, placed = false;
    const place = () => { placed = true; if (text) next.push({ text, kind: "new", why }); };
    for (const piece of this.pieces) {
      if (piece.kind === "gone") { next.push(piece); continue; }
      const points = Array.from(piece.text);
      const from = Math.max(0, Math.min(points.length, start - at));
      const to = Math.max(from, Math.min(points.length, end - at));
      const part = (a, b, kind) => {
        if (a < b && (kind !== "gone" || this.keepsGone)) next.push({ ...piece, text: points.slice(a, b).join(""), kind: kind ?? piece.kind, why: kind ? why : piece.why });
      };
      part(0, from);
      part(from, to, "gone");
      if (!placed && at + points.length > end) place();
      part(to, points.length);
      at += points.length;
    }
    if (!placed) place();
    this.pieces = next;
    this.draw();
  }

  get length() { return this.pieces.reduce((n, p) => n + (p.kind === "gone" ? 0 : Array.from(p.text).length), 0); }

  draw() {
    this.tail = null;
    this.box.replaceChildren(...this.pieces.map((piece) => {
      if (piece.kind === "text") return document.createTextNode(piece.text);
      const node = document.createElement(piece.kind === "gone" ? "del" : "ins");
      node.textContent = piece.text;
      node.title = piece.why;
      return node;
    }));
  }
}

/** The list of ops with their times, and the strip above it. */
class Timeline {
  constructor() { this.clear(performance.now()); }

  clear(began) { this.began = began; this.marks = []; this.run = null; $("ops").replaceChildren(); this.draw(); }

  add(op, what, id) {
    const ms = performance.now() - this.began;
    const kind = BAD.has(op) ? "bad" : WARN.has(op) ? "warn" : op === "show" ? "" : "soft";
    this.marks.push([ms, kind]);
    if (op === "show" && this.run) return this.extend(ms, id);
    const row = document.createElement("tr");
    const cells = [ms.toFixed(1), "", what, id ?? ""].map((text) => {
      const cell = row.appendChild(document.createElement("td"));
      cell.textContent = text;
      return cell;
    });
    const badge = cells[1].appendChild(document.createElement("span"));
    badge.className = `op ${kind}`;
    badge.textContent = op;
    if ($("ops").childElementCount < MAX_ROWS) $("ops").append(row);
    this.run = op === "show" ? { cells, count: 1, first: ms } : null;
  }

  extend(ms, id) {
    this.run.count += 1;
    this.run.cells[2].textContent = `${this.run.count} ops, last at ${ms.toFixed(1)} ms`;
    this.run.cells[3].textContent = id;
  }

  /** Draw one line at each place and in each colour: thousands on top of each other take seconds. */
  draw() {
    const span = Math.max(1, this.marks.at(-1)?.[0] ?? 1);
    const places = new Map();
    for (const [ms, kind] of this.marks) {
      if (!places.has(kind)) places.set(kind, new Set());
      places.get(kind).add(5 + Math.round(990 * ms / span));
    }
    const line = (x, kind) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", "line");
      for (const [name, value] of [["x1", x], ["x2", x], ["y1", kind ? 2 : 10], ["y2", 32], ["class", kind]]) {
        made.setAttribute(name, String(value));
      }
      return made;
    };
    $("strip").replaceChildren(...Array.from(places, ([kind, xs]) => Array.from(xs, (x) => line(x, kind))).flat());
  }
}

const screen_ = new Screen($("answer"), document.body.dataset.view === "operator");
const timeline = new Timeline();
let socket = null, attempt = 0, timer = 0, watch = 0, pingedAt = null, answeredAt = 0, unsent = null; // unsent: a request that the server has not accepted yet
let request = null; // { id, ref, last, tokens, firstMs, voiceMs, lastMs, open }; voiceMs: first text of the current attempt
let lockedId = null; // the request whose answer needs a key, as after a reload
let again = 0; // the timer of a resume that was refused for now
let asked = 0; // the ref of the last ask or resume; the server's reply repeats it

function hello() {
  socket.send(JSON.stringify($("key").value ? { type: "hello", key: $("key").value } : { type: "hello" }));
}

function connect() {
  clearTimeout(timer);
  clearInterval(watch);
  const address = new URL("/v1/stream", location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(address);
  pingedAt = performance.now(); // the handshake must be answered too
  watch = setInterval(checkHeartbeat, PING_MS / 5);
  socket.onopen = () => {
    attempt = 0;
    say("connection", "connected", false);
    pingedAt = null;
    answeredAt = performance.now();
    hello(); // at once: a connection without a first message is closed
    if (request?.open && request.id) {
      resume();
    } else if (unsent) {
      socket.send(unsent);
    }
  };
  socket.onmessage = (event) => {
    pingedAt = null;
    answeredAt = performance.now();
    take(JSON.parse(event.data));
  };
  socket.onclose = (event) => {
    clearInterval(watch);
    clearTimeout(again); // it is resumed when there is a connection
    const why = event.reason ? ` (${event.reason})` : "";
    if (event.code === NO_HELLO) {
      say("connection", `disconnected${why}`, true);
      return; // until the user asks, with a key
    }
    reconnect(`disconnected${why}`);
  };
}

function reconnect(why) {
  say("connection", `${why}; reconnecting`, true);
  timer = setTimeout(connect, RETRY_MS[Math.min(attempt++, RETRY_MS.length - 1)]);
}

function resume() {
  request.ref = ++asked; // by then the page may show another request: the reply to this one must not be taken for its
  socket.send(JSON.stringify({ type: "resume", ref: request.ref, request_id: request.id, after: request.last }));
  timeline.add("resume", request.last ? `after ${request.last}` : "from the beginning", "");
}

function resumeLater(why) {
  say("outcome", `${why} The page tries again.`, true);
  again = setTimeout(resume, AGAIN_MS);
}

/** Ask the server for a sign of life; leave it where none comes: browsers hide the protocol's own pings from scripts. */
function checkHeartbeat() {
  const now = performance.now();
  if (pingedAt !== null) {
    if (now - pingedAt < SILENT_MS) return;
    socket.onopen = socket.onmessage = socket.onclose = null; // a frozen server would not answer the close either
    socket.close();
    clearInterval(watch);
    clearTimeout(again);
    reconnect("no answer from the server");
  } else if (now - answeredAt >= PING_MS && socket.readyState === WebSocket.OPEN) {
    pingedAt = now;
    socket.send('{"type":"ping"}');
  }
}

function say(id, text, bad) {
  $(id).textContent = text;
  $(id).className = bad ? (id === "outcome" ? "bad" : "away") : "";
}

function take(message) {
  if (message.type === "accepted") {
    if (!awaits(message)) return cancel(message.request_id); // it was stopped before
    unsent = null;
    say("outcome", "", false);
    request.id = message.request_id;
    history.replaceState(null, "", `#${message.request_id}`);
  } else if (message.type === "error") {
    if (awaits(message) && request.id && FOR_NOW.has(message.error.code)) return resumeLater(message.error.message);
    if ((message.ref === undefined && message.request_id === undefined) || awaits(message)) fail(message.error);
  } else if (message.op && request && message.request_id === request.id) {
    request.last = message.id;
    for (const op of message.op === "catch_up" ? message.ops : [message]) apply(op, message.id);
    redraw();
  }
}

/** Whether a reply is about the request that the page shows and that was not stopped. */
function awaits(message) {
  if (!request?.open) return false;
  return message.ref === undefined ? message.request_id === request.id : message.ref === request.ref;
}

function cancel(id) {
  socket.send(JSON.stringify({ type: "cancel", request_id: id }));
}

/** List under the answer what was taken back, by which rule of which policy. */
function explain(what, why) {
  if ($("why").childElementCount >= MAX_REASONS) return;
  $("why").appendChild(document.createElement("li")).textContent = `${what}: ${why}`;
}

function apply(op, id) {
  const why = op.rule ? `${op.category}: rule ${op.rule}, policy ${op.policy_version}` : "";
  const now = performance.now() - timeline.began;
  switch (op.op) {
    case "begin":
      $("model").textContent = op.model;
      timeline.add("begin", `attempt ${op.attempt} by ${op.model}`, id);
      break;
    case "show":
      request.firstMs ??= now;
      request.voiceMs ??= now;
      request.lastMs = now;
      request.tokens += op.tokens;
      screen_.show(op.text);
      timeline.add("show", "1 op", id);
      break;
    case "replace":
      screen_.replace(op.start, op.end, op.text, why);
      explain("replaced", why);
      timeline.add("replace", `characters ${op.start} to ${op.end}; ${why}`, id);
      break;
    case "withdraw":
      screen_.replace(0, screen_.length, op.text, why);
      explain("withdrawn", why);
      timeline.add("withdraw", why, id);
      break;
    case "refuse":
      screen_.replace(0, screen_.length, op.text, `policy ${op.policy_version}`);
      explain("refused", `policy ${op.policy_version}`);
      timeline.add("refuse", `policy ${op.policy_version}`, id);
      break;
    case "restart":
      screen_.replace(0, screen_.length, "", `attempt ${op.attempt} started (${op.trigger})`);
      request.tokens = 0;
      request.voiceMs = null;
      timeline.add("restart", `attempt ${op.attempt} takes over: ${op.trigger}`, id);
      break;
    case "finish":
      timeline.add("finish", `${op.finish_reason}, ${op.usage.completion_tokens} tokens`, id);
      break;
    case "close":
      timeline.add("close", [op.outcome, op.reason].filter(Boolean).join(": "), id);
      end(op.outcome + (op.reason ? `: ${op.reason}` : ""), op.outcome !== "completed", now);
      break;
  }
}

let drawing = false;
function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    timeline.draw();
    if (!request) return;
    const { firstMs, voiceMs, lastMs, tokens } = request;
    $("ttft").textContent = firstMs === null ? "–" : `${firstMs.toFixed(0)} ms`;
    $("count").textContent = String(tokens);
    $("rate").textContent = voiceMs !== null && lastMs > voiceMs ? ((tokens - 1) / (lastMs - voiceMs) * 1000).toFixed(1) : "–";
  });
}

function begin(id) {
  lockedId = null;
  request = { id, ref: null, last: null, tokens: 0, firstMs: null, voiceMs: null, lastMs: null, open: true };
  screen_.clear();
  $("why").replaceChildren();
  timeline.clear(performance.now());
  for (const name of ["ttft", "count", "rate", "total", "model"]) $(name).textContent = "–";
  say("outcome", "", false);
  $("answer").setAttribute("aria-busy", "true");
  $("send").disabled = true;
  $("stop").disabled = false;
}

function end(text, bad, ms) {
  if (request) request.open = false;
  unsent = null;
  clearTimeout(again);
  $("answer").setAttribute("aria-busy", "false");
  $("send").disabled = false;
  $("stop").disabled = true;
  if (ms !== undefined) $("total").textContent = `${ms.toFixed(0)} ms`;
  say("outcome", text, bad);
}

function fail(error) {
  if (error.code === HIDE) screen_.clear();
  if (error.code === "missing_api_key" || error.code === "invalid_api_key") {
    if (request?.open) lockedId = request.id;
    $("key-label").hidden = false;
    $("key").focus();
  }
  end(error.code === HIDE ? `The text is hidden. ${error.message}` : error.message, true);
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  begin(null);
  request.ref = ++asked;
  const body = { type: "ask", ref: request.ref, prompt: $("prompt").value, max_tokens: Number($("tokens").value) };
  if ($("delivery").value) body.railbus = { delivery: $("delivery").value };
  unsent = JSON.stringify(body);
  if (socket.readyState === WebSocket.OPEN) {
    if ($("key").value) hello();
    socket.send(unsent);
  } else if (socket.readyState === WebSocket.CLOSED) {
    connect();
  }
});
$("key").addEventListener("change", () => {
  if (!lockedId || !$("key").value) return;
  begin(lockedId);
  if (socket.readyState === WebSocket.OPEN) {
    hello();
    resume();
  } else if (socket.readyState === WebSocket.CLOSED) {
    connect();
  }
});
$("stop").addEventListener("click", () => {
  if (request?.id && socket.readyState === WebSocket.OPEN) cancel(request.id);
  end("stopped here; the server cancels the request unless a client resumes it", false, performance.now() - timeline.began);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("send").disabled) $("ask").requestSubmit();
});

if (/^#[0-9a-f-]{36}$/.test(location.hash)) begin(location.hash.slice(1));
connect();
