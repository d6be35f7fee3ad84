"use strict";
// The ledger's page: asks for the sums every few seconds and draws them. The key stays in the page's memory.

const $ = (id) => document.getElementById(id);
const POLL_MS = 4000, READING_MS = 500;
const ANSWER_MS = 15000; // a server that does not answer by then is away
const OLD_LOG_S = 15; // the edge asks the broker every two seconds
const QUIET_S = 120; // the ledger publishes within seconds of each closed request
const STAGES = ["post", "lost_attempts", "worker", "engine_queue", "prefill", "rails", "hold_back", "decode", "final_hold_back", "close", "delivery"];
const LEAST_POINTS = 10; // on an axis of time
const RECALLS_MINUTES = 10; // the edge reads no older accounts
const QUANTILES = ["p50", "p95", "p99"];

let timer = 0, asked = 0, shownAt = null, calling = null, drawn = null; // drawn: the report on the screen

const words = (name) => name.replaceAll("_", " ");
const kind = (name) => name.replaceAll("_", "-");

/** A share: one that is not zero or not all must not look so. */
function percent(share) {
  if (share === null) return "–";
  if (share > 0 && share < 0.001) return "< 0.1 %";
  if (share > 0.999 && share < 1) return "> 99.9 %";
  return `${(100 * share).toFixed((share > 0 && share < 0.1) || (share > 0.9 && share < 1) ? 1 : 0)} %`;
}

const ms = (value) => value === null ? "–" : Math.abs(value) < 1e4 ? `${short(value)} ms` : `${short(value / 1000)} s`;
const usd = (value) => `$${value.toFixed(value && value < 1 ? 4 : 2)}`;
const ago = (seconds) => seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;

async function poll() {
  clearTimeout(timer);
  calling?.abort();
  const number = ++asked, call = calling = new AbortController();
  const limit = setTimeout(() => call.abort(), ANSWER_MS);
  let next = POLL_MS;
  try {
    const query = new URLSearchParams(["minutes", "tenant", "class"].map((name) => [name, $(name).value]));
    const response = await fetch(`/ledger/data?${query}`, { signal: call.signal, cache: "no-store",
      headers: $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {} });
    const answer = await response.json();
    if (number !== asked) return;
    if (response.ok) {
      take(answer);
      if (answer.state === "reading") next = READING_MS;
    } else {
      refuse(response.status, answer.error);
      if (response.status === 401) return; // until there is a key
    }
  } catch {
    if (number !== asked) return;
    $("age").textContent = "";
    say(shownAt === null ? "no answer from the server" : `no answer from the server; figures of ${shownAt}`, true);
  } finally {
    clearTimeout(limit);
  }
  if (!document.hidden) timer = setTimeout(poll, next); // a page that nobody sees asks for nothing
}

function say(text, bad) {
  if ($("connection").textContent === text) return; // a screen reader says it each time that it is set
  $("connection").textContent = text;
  $("connection").className = bad ? "away" : "";
}

function refuse(status, error) {
  $("age").textContent = "";
  $("error").textContent = error.message;
  $("error").hidden = false;
  if (status === 401) {
    $("books").hidden = $("empty").hidden = true;
    drawn = null;
    $("key-label").hidden = $("use-key").hidden = false;
    say("needs an API key", true);
    $("key").focus();
  } else {
    say("no new figures", true);
  }
}

function take(report) {
  $("error").hidden = true;
  shownAt = new Date().toLocaleTimeString();
  tellAge(report);
  choose("tenant", report.choices.tenants);
  choose("class", report.choices.classes);
  const any = report.total.requests > 0;
  $("books").hidden = !any;
  $("empty").hidden = any || report.state === "reading";
  drawn = any ? report : null;
  if (any) draw(report);
  else explainEmpty(report);
}

/** Say whether the figures are of now. */
function tellAge(report) {
  $("age").textContent = report.published_age_s === null ? "" : `newest sums ${ago(report.published_age_s)} old`;
  if (report.state === "refused") return say("the broker does not let this edge read railbus.ledger", true);
  if (report.state === "reading") return say("reading the log", false);
  if (report.log_age_s > OLD_LOG_S) return say(`old: the log was last reached ${ago(report.log_age_s)} ago`, true);
  const published = report.published_age_s;
  if (published > QUIET_S) return say(`nothing published for ${ago(published)}: no request was closed, or no ledger runs`, true);
  return say("live", false);
}

function explainEmpty(report) {
  const filtered = $("tenant").value || $("class").value;
  $("empty-why").textContent = filtered ? "No request of this tenant and class was closed in this time."
    : report.published_age_s === null ? "railbus.ledger has no sums of the last hour." : "No request was closed in this time.";
}

/** Offer these choices, and keep what is chosen. */
function choose(id, names) {
  const select = $(id), chosen = select.value;
  const wanted = ["", ...new Set([...names, ...(chosen ? [chosen] : [])])];
  if (wanted.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  select.replaceChildren(...wanted.map((name) => element("option", { value: name }, name || "all")));
  select.value = chosen;
}

function draw(report) {
  const { total, points } = report;
  const width = report.point_s * 1e6;
  const to = Math.ceil(report.until_at / width) * width;
  const from = Math.max(Math.floor(report.since_at / width) * width, Math.min(points[0].start_at, to - LEAST_POINTS * width));
  const range = { from, to, width }; // an hour of which only the last minutes have requests is not mostly blank
  figures(report);
  budget(total, points, range);

  const seconds = (value) => value / 1000;
  lines($("balance"), `Earned and spent over time. Earned ${short(seconds(total.earned_ms))} s, spent ${short(seconds(total.spent_ms))} s in all.`, "s", points, range, [
    { name: "earned", shown: ms(total.earned_ms), kind: "earned", of: (point) => seconds(point.earned_ms) },
    { name: "spent", shown: ms(total.spent_ms), kind: "spent", of: (point) => seconds(point.spent_ms) }]);
  $("balance-note").textContent = total.sums.speculated ? ""
    : "Nothing counts as earned: no answer was drafted, or RAILBUS_LEDGER_PLAIN_TOKEN_MS does not say what a token takes without speculation.";
  table($("balance-table"), "In milliseconds", [...points].reverse(), [["from", (point) => clock(point.start_at)],
    ["earned", (point) => short(point.earned_ms)], ["spent", (point) => short(point.spent_ms)],
    ["balance", (point) => short(point.balance_ms)]]);

  quantiles("first", "first_text", "ms", "Time to the first text", report, range);
  quantiles("exposure", "exposed_tokens", "tokens", "Most tokens that a client was shown unchecked", report, range);
  objectives(report);
  routes(report, range);
  breaker(report);
  recalls(report);
  rows(report);
}

function objectives(report) {
  $("objectives").hidden = !report.classes.length;
  const answer = (row) => row.attained === null ? "–" : `${row.attained ? "yes" : "no"}${row.sure ? "" : ", not sure"}`;
  const exact = (share) => share === null ? "–" : `${(100 * share).toFixed(2)} %`;
  table($("classes-table"), "Requests that kept every objective of their class", report.classes, [["class", (row) => row.service_class],
    ["attained", answer], ["wanted", (row) => exact(row.wanted)], ["in time", (row) => exact(row.share)],
    ["95 %", (row) => row.interval_95 ? row.interval_95.map((one) => (100 * one).toFixed(1)).join(" to ") : "–"],
    ["judged", (row) => whole(row.judged)]], 2);
}

const BREAKER = { closed: "closed: requests try the self-hosted path", open: "open: requests go to the cloud at once",
  half_open: "half open: a few requests probe the self-hosted path" };

function breaker(report) {
  const found = report.breaker;
  $("breaker").hidden = !found;
  if (!found) return;
  const routers = found.of_routers > 1 ? `, ${found.routers} of ${found.of_routers} routers` : "";
  const old = ago(Math.max(0, (report.until_at - found.at) / 1e6));
  $("breaker").textContent = `Breaker ${BREAKER[found.state]}${routers}, as of the newest account, ${old} ago.`;
  $("breaker").className = found.state === "closed" ? "" : "bad";
}

function recalls(report) {
  $("recalls-table").hidden = !report.recalls.length;
  const minutes = Math.min(RECALLS_MINUTES, Math.round((report.until_at - report.since_at) / 6e7));
  $("recalls-note").textContent = `${report.recalls.length ? "Of" : "None in"} the last ${minutes} minutes.`;
  table($("recalls-table"), "Newest first", report.recalls, [["at", (row) => new Date(row.at / 1000).toLocaleTimeString()],
    ["category", (row) => row.category], ["rule", (row) => row.rule], ["action", (row) => row.action],
    ["tenant", (row) => row.tenant], ["request", (row) => row.request_id]], 6);
}

function figures(report) {
  const { total } = report, sums = total.sums, slo = total.slo;
  const shown = [
    ["Requests", whole(total.requests), `${whole(sums.completed)} completed, ${whole(sums.failed)} failed`],
    ["In time", percent(slo.share), slo.interval_95 ? `95 %: ${percent(slo.interval_95[0])} to ${percent(slo.interval_95[1])} of ${whole(slo.judged)}` : "none judged"],
    ["First text", ms(total.first_text.p50), `p95 ${ms(total.first_text.p95)}, p99 ${ms(total.first_text.p99)}`],
    ["Whole answer", ms(total.total.p50), `p95 ${ms(total.total.p95)}, p99 ${ms(total.total.p99)}`],
    ["Balance", ms(total.balance_ms), `earned ${ms(total.earned_ms)}, spent ${ms(total.spent_ms)}; rails and safety held first texts for ${ms(total.spent_first_ms)} in all`],
    ["Recalled", percent(total.recalled_share), `${whole(sums.recalls)} recalls, text shown for ${ms(sums.exposure_ms)}`],
    ["Fell back", percent(total.fallback_share), `${whole(sums.fell_back)} to the cloud, ${whole(sums.retried)} tried again`],
    ["Cost", usd(sums.usd), `${usd(1000 * sums.usd / total.requests)} for 1,000 requests`],
  ];
  $("figures").replaceChildren(...shown.map(([name, value, more]) => element("div", {}, element("dt", {}, name),
    element("dd", {}, value, element("small", {}, more)))));
}

function budget(total, points, range) {
  const parts = (one) => STAGES.map((name) => ({ name: words(name), kind: kind(name), value: one.stages_ms[name] / one.requests }));
  const all = parts(total);
  const sum = all.reduce((before, part) => before + part.value, 0);
  const share = (part) => percent(sum ? part.value / sum : null);
  partsBar($("budget"), `Mean of a request: ${ms(sum)}`, all.map((part) => ({ ...part, shown: ms(part.value),
    said: `${part.name} ${ms(part.value)}, ${share(part)}` })));
  columns($("budget-over-time"), "The same over time, mean per request", "ms per request", points, range, parts);
  table($("budget-table"), "Mean per request in milliseconds", [{ at: "all", one: total }, ...[...points].reverse().map((point) => ({ at: clock(point.start_at), one: point }))],
    [["from", (row) => row.at], ["requests", (row) => whole(row.one.requests)],
      ...STAGES.map((name, number) => [words(name), (row) => short(parts(row.one)[number].value)])]);
}

function quantiles(id, name, unit, label, report, range) {
  const { total, points } = report;
  const text = (value) => value === null ? "–" : unit === "tokens" ? whole(Math.round(value)) : short(value);
  const said = QUANTILES.map((share) => `${share} ${text(total[name][share])}`).join(", ");
  lines($(id), `${label} over time. In all: ${said} ${unit}.`, unit, points, range,
    QUANTILES.map((share) => ({ name: share, shown: text(total[name][share]), kind: share, of: (point) => point[name][share] })));
  table($(`${id}-table`), `${label}, ${unit}`, [{ at: "all", one: total }, ...[...points].reverse().map((point) => ({ at: clock(point.start_at), one: point }))],
    [["from", (row) => row.at], ["requests", (row) => whole(row.one.requests)], ...QUANTILES.map((share) => [share, (row) => text(row.one[name][share])])]);
}

function routes(report, range) {
  const requests = report.total.requests;
  partsBar($("routes"), "Requests by route", report.routes.map((route) => ({ name: words(route.route), kind: kind(route.route),
    value: route.requests, shown: percent(route.requests / requests), said: `${words(route.route)} ${whole(route.requests)} requests` })));
  lines($("shares"), "Requests that fell back to the cloud, and that were recalled, over time", "%", report.points, range, [
    { name: "fell back", shown: percent(report.total.fallback_share), kind: "fell-back", of: (point) => 100 * point.fallback_share },
    { name: "recalled", shown: percent(report.total.recalled_share), kind: "recalled", of: (point) => 100 * point.recalled_share }]);
  table($("routes-table"), "By route", report.routes, [["route", (row) => words(row.route)], ...SUMS]);
}

const SUMS = [["requests", (row) => whole(row.requests)], ["in time", (row) => percent(row.slo.share)],
  ["first p50", (row) => ms(row.first_text.p50)], ["first p99", (row) => ms(row.first_text.p99)],
  ["total p99", (row) => ms(row.total.p99)], ["fell back", (row) => percent(row.fallback_share)],
  ["recalled", (row) => percent(row.recalled_share)], ["cost", (row) => usd(row.sums.usd)]];

function rows(report) {
  table($("rows-table"), "Those with most requests first", report.rows, [["tenant", (row) => row.tenant], ["class", (row) => row.service_class ?? row.lane],
    ["route", (row) => words(row.route)], ["model", (row) => row.model ?? "–"], ["policy", (row) => (row.policy_version ?? "–").slice(0, 12)], ...SUMS], 5);
  const notes = [];
  if (report.rows_left_out) notes.push(`${report.rows_left_out} more are in the sums above.`);
  if (report.complete_since > report.since_at) notes.push(`There are too many windows for this page: complete since ${clock(report.complete_since)}.`);
  if (report.unreadable) notes.push(`${report.unreadable} records of railbus.ledger could not be read here.`);
  if (report.dated_ahead) notes.push(`${report.dated_ahead} records were left out: they are dated more than an hour ahead.`);
  $("rows-note").textContent = notes.join(" ");
}

for (const id of ["minutes", "tenant", "class"]) $(id).addEventListener("change", poll);
$("filters").addEventListener("submit", (event) => { event.preventDefault(); poll(); });
let frameAsked = false;
window.addEventListener("resize", () => {
  if (frameAsked) return;
  frameAsked = true;
  requestAnimationFrame(() => { frameAsked = false; if (drawn) draw(drawn); });
});
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) poll();
});
poll();
