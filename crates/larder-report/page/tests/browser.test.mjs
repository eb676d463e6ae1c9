// What a person does with the page, in a real browser. The figures are those that `larder replay` prints.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { browser, datum, json, open, report, root, scratch } from "./pages.mjs";

const varlen = join(root, "workloads/gpt2_varlen.pickle.gz");
const streams = join(root, "workloads/prefetch_streams.pickle.gz");

let chromium;
let tab;

before(async () => {
  chromium = await browser();
  tab = await open(chromium, report("varlen", varlen));
});

after(async () => {
  await chromium?.close();
});

const words = (selector, where = tab) => where.textContent(selector);
const numbers = (text) => [...text.matchAll(/\d[\d,]*/g)].map(([digits]) => Number(digits.replaceAll(",", "")));

async function shown(where = tab) {
  const [from, to] = numbers(await words("#window", where));
  return { from, to, width: to - from };
}

/** A place in the plot, as shares of its width and height. */
async function place(across, down, where = tab) {
  const box = await where.locator("canvas.timeline").first().boundingBox();
  return [box.x + 74 + across * (box.width - 86), box.y + 14 + down * (box.height - 38)];
}

async function goTo(event, where = tab) {
  await where.fill("#moment", String(event));
  await where.press("#moment", "Enter");
  await where.waitForFunction((event) => document.getElementById("event").textContent.startsWith(`Event ${event.toLocaleString("en")}:`), event);
}

async function checkFigures(where, file, ...more) {
  const told = json("replay", file, "--json", ...more);
  for (const what of ["allocated", "active", "reserved"]) {
    assert.equal(await datum(where, `#figure-${what}`, "value"), told[`${what}_bytes.all.peak`], what);
  }
  assert.equal(await datum(where, "#figure-overhead", "value"), told.overhead);
  assert.equal(await datum(where, "#figure-retries", "value"), told.num_alloc_retries);
  assert.equal(await datum(where, "#figure-ooms", "value"), told.ooms);
  return told;
}

test("the figures are those of the replay, at the top, at the peaks and at the end", async () => {
  const told = await checkFigures(tab, varlen);
  assert.equal(await datum(tab, "#holders-sums", "bytes"), told["active_bytes.all.peak"]);
  await tab.click("button[data-goto=reserved]");
  const held = (bytes) => tab.waitForFunction((bytes) => document.getElementById("map-sums").dataset.held === String(bytes), bytes);
  await held(told["reserved_bytes.all.peak"]);
  await tab.click("button[data-goto=end]");
  await held(told["reserved_bytes.all.current"]);
  assert.equal(await datum(tab, "#map-sums", "live"), told["allocated_bytes.all.current"]);
  await tab.click("button[data-goto=allocated]");
});

test("the settings are those of the comparison", async () => {
  const rows = json("compare", varlen, "--json", "--policy", "torch-2.11");
  const seen = await tab.$$eval("#compared tr", (lines) => lines
    .filter((line) => line.cells[0]?.textContent === "torch-2.11")
    .map((line) => ({ conf: line.cells[1].textContent, reserved: Number(line.cells[2].dataset.bytes) })));
  assert.equal(seen.length, rows.length);
  for (const row of rows) {
    const conf = (row.conf || "(default)") + (row.recorded ? " [as recorded]" : "");
    const line = seen.find((line) => line.conf.startsWith(conf));
    assert.equal(line?.reserved, row.peak_reserved_bytes, row.conf);
  }
  const paste = await tab.$$eval("#compared code", (codes) => codes.map((code) => code.textContent));
  assert.ok(paste.includes("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), paste.join("; "));
  assert.match(await words("#answer"), /so set /);
  // What is advised stands first, marked, and is whole on the screen.
  const best = tab.locator("#compared tr").nth(1);
  assert.equal(await best.getAttribute("class"), "best");
  const advised = await best.locator("code").last().textContent();
  assert.ok((await words("#answer")).includes(advised.split(" ")[0]), advised);
  const [box, frame] = [await best.boundingBox(), await tab.locator("#settings-section .scroll").boundingBox()];
  assert.ok(box.width <= frame.width + 1, `${box.width} in ${frame.width}`);
});

test("the page opens with a verdict that the command gives too", async () => {
  const sentence = await words(".verdict .sentence");
  assert.match(sentence, /^Nothing failed, and nothing was near to failing\. It held 14\.76 GiB and used 11\.39 GiB at most/);
  assert.equal(await words(".verdict code"), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  const back = await tab.$$eval(".verdict li", (lines) => lines.map((line) => line.textContent));
  assert.ok(back.some((line) => line.endsWith("emptying the cache gives it back")), back.join("; "));
  const [verdict, chart] = [await tab.locator(".verdict").boundingBox(), await tab.locator("#over-time").boundingBox()];
  assert.ok(verdict.y < chart.y && verdict.y + verdict.height < 900);
});

test("the wheel zooms where it points, a drag moves, keys do both", async () => {
  const whole = await shown();
  await tab.mouse.move(...(await place(0.75, 0.5)));
  for (let turn = 0; turn < 6; turn++) await tab.mouse.wheel(0, -200);
  await tab.waitForFunction((to) => !document.getElementById("window").textContent.includes(`0 to ${to}`), whole.to.toLocaleString("en"));
  const near = await shown();
  assert.ok(near.width < whole.width / 8, `${near.width} of ${whole.width}`);
  const pointed = whole.width * 0.75;
  assert.ok(near.from < pointed && pointed < near.to, "what the wheel points at stays");

  await tab.mouse.move(...(await place(0.6, 0.3)));
  await tab.mouse.down();
  await tab.mouse.move(...(await place(0.2, 0.3)), { steps: 8 });
  await tab.mouse.up();
  const moved = await shown();
  const expected = near.from + 0.4 * near.width;
  assert.ok(Math.abs(moved.from - expected) < near.width * 0.03, `${moved.from} is not ${expected}`);
  assert.ok(Math.abs(moved.width - near.width) <= 1);

  await tab.focus("canvas.timeline");
  await tab.keyboard.press("ArrowLeft");
  const left = await shown();
  assert.ok(left.from < moved.from);
  await tab.keyboard.press("+");
  assert.ok((await shown()).width < left.width);
  await tab.keyboard.press("0");
  assert.deepEqual(await shown(), whole);
});

test("a picture that moves with the window is the one that is painted anew", async () => {
  await tab.focus("canvas.timeline");
  for (const key of ["+", "+", "+", "+"]) await tab.keyboard.press(key);
  await tab.waitForTimeout(400);
  const differing = await tab.evaluate(async () => {
    const canvas = document.querySelector("canvas.timeline");
    const frames = (count) => new Promise((done) => {
      const next = () => (count-- > 0 ? requestAnimationFrame(next) : done());
      next();
    });
    const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    const paper = copy.getContext("2d", { willReadFrequently: true });
    const pixels = () => {
      paper.clearRect(0, 0, copy.width, copy.height);
      paper.drawImage(canvas, 0, 0);
      return new Uint32Array(paper.getImageData(0, 0, copy.width, copy.height).data.buffer);
    };
    const before = pixels();
    for (const key of ["ArrowLeft", "ArrowLeft", "ArrowRight"]) {
      canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      await frames(2);
    }
    const moved = pixels();
    await new Promise((done) => setTimeout(done, 500));
    const anew = pixels();
    const share = (one, other) => one.reduce((sum, pixel, at) => sum + (pixel !== other[at]), 0) / one.length;
    return { byMoving: share(before, moved), bySettling: share(moved, anew) };
  });
  assert.ok(differing.byMoving > 0.1, `it did move: ${differing.byMoving}`);
  // Whole columns and the height of the moment before make a difference at edges alone.
  assert.ok(differing.bySettling < 0.06, `${differing.bySettling} of the picture is otherwise`);
  await tab.keyboard.press("0");
  await tab.waitForTimeout(300);
});

test("two fingers zoom", async () => {
  const touched = await open(chromium, report("touched", streams, "--no-compare"), { hasTouch: true });
  const whole = await shown(touched);
  const devtools = await touched.context().newCDPSession(touched);
  const fingers = async (type, ...shares) => {
    const points = await Promise.all(shares.map((share) => place(share, 0.5, touched)));
    const touchPoints = points.map(([x, y], id) => ({ x, y, id }));
    await devtools.send("Input.dispatchTouchEvent", { type, touchPoints });
  };
  await fingers("touchStart", 0.45, 0.55);
  for (let step = 1; step <= 6; step++) await fingers("touchMove", 0.45 - step * 0.04, 0.55 + step * 0.04);
  await fingers("touchEnd");
  assert.ok((await shown(touched)).width < whole.width / 2);
  assert.deepEqual(touched.troubles, []);
  await checkFigures(touched, streams);
  await touched.context().close();
});

test("a band says what it is when pointed at, and stays when clicked", async () => {
  await tab.click("#near-peak");
  await tab.waitForTimeout(100);
  const [x, y] = await place(0.3, 0.97);
  await tab.mouse.move(x, y);
  const tip = tab.locator(".plot > .tip").first();
  await tip.waitFor({ state: "visible" });
  assert.match(await tip.textContent(), /[KMG]iB.*stream 0, default pool.*event \d/s);
  await tab.mouse.click(x, y);
  const kept = await words("#chosen");
  for (const word of ["size", "stream", "pool", "category", "lifetime", "address"]) assert.ok(kept.includes(word), word);
  await tab.mouse.move(10, 10);
  assert.equal(await words("#chosen"), kept, "it stays when the pointer goes");
  assert.ok(await tip.isHidden());
});

test("bands lie where the statistics say: their sum is what is active", async () => {
  const { events } = await tab.evaluate(() => JSON.parse(document.getElementById("facts").textContent).sides[0]);
  for (const share of [0.1, 0.37, 0.62, 0.93]) {
    await goTo(Math.floor(events * share));
    await tab.selectOption("#holders-at", "0:moment");
    const event = Math.floor(events * share).toLocaleString("en");
    await tab.waitForFunction((event) => document.getElementById("holders-sums").textContent.includes(`at event ${event}`), event);
    await tab.waitForFunction(() => document.getElementById("map-sums").dataset.active === document.getElementById("holders-sums").dataset.bytes);
  }
  await tab.selectOption("#holders-at", "0:allocated");
});

test("one steps from event to event", async () => {
  await goTo(5000);
  const first = await words("#event");
  await tab.click("#later");
  await tab.waitForFunction(() => document.getElementById("event").textContent.startsWith("Event 5,001:"));
  await tab.click("#earlier");
  await tab.waitForFunction((first) => document.getElementById("event").textContent === first, first);
  assert.match(first, /allocated|given back|free again|memory/);
});

test("the table is sorted and searched", async () => {
  const column = (at) => tab.$$eval("#holders tr", (lines, at) => lines.slice(1).map((line) => line.cells[at].textContent), at);
  const bytes = () => tab.$$eval("#holders td[data-bytes]", (cells) => cells.map((cell) => Number(cell.dataset.bytes)));
  const all = await bytes();
  assert.deepEqual(all, [...all].sort((one, other) => other - one));
  await tab.click("#holders th:nth-child(1) button");
  assert.deepEqual(await bytes(), [...all].sort((one, other) => one - other));
  await tab.click("#holders th:nth-child(2) button");
  const counts = (await column(1)).map((text) => Number(text.replaceAll(",", "")));
  assert.deepEqual(counts, [...counts].sort((one, other) => other - one));
  await tab.fill("#search", "84.75 MiB");
  const found = await column(2);
  assert.ok(found.length > 0 && found.length < all.length && found.every((size) => size === "84.75 MiB"), found.join());
  await tab.fill("#search", "no such thing");
  assert.equal((await bytes()).length, 0);
  await tab.fill("#search", "");
});

test("two moments are compared", async () => {
  await goTo(1000);
  await tab.click("#pin");
  await goTo(1000);
  await tab.waitForFunction(() => /: 0$/.test(document.getElementById("holders-sums").textContent));
  await tab.click("button[data-goto=allocated]");
  await tab.waitForFunction(() => /: \+[\d.]+ [KMG]iB$/.test(document.getElementById("holders-sums").textContent));
  const changes = await tab.$$eval("#holders td.more", (cells) => cells.length);
  assert.ok(changes > 0);
});

test("what is free and what pins it is told, oldest first", async () => {
  await tab.click("button[data-goto=allocated]");
  await tab.waitForFunction(() => /free in \d+ run/.test(document.getElementById("free-sums").textContent));
  assert.match(await words("#free-request"), /request that no free run could serve/);
  const since = await tab.$$eval("#pins tr", (lines) => lines.slice(1).map((line) => Number(line.cells[0].textContent.replaceAll(",", ""))));
  assert.ok(since.length > 1);
  assert.deepEqual(since, [...since].sort((one, other) => one - other));
});

test("the theme is switched, and the colours with it", async () => {
  const paper = () => tab.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const pixel = () => tab.evaluate(() => document.querySelector("canvas.timeline").toDataURL().length);
  const [light, picture] = [await paper(), await pixel()];
  await tab.click("#theme");
  await tab.waitForTimeout(100);
  assert.notEqual(await paper(), light);
  assert.notEqual(await pixel(), picture);
  await tab.click("#theme");
  assert.equal(await paper(), light);
});

test("stacks make a flame graph that can be entered", async () => {
  const stacked = await open(chromium, report("stacked", stackedRecording(), "--no-compare"));
  const boxes = () => stacked.$$eval(".flame-box", (all) => all.map((box) => box.title));
  const all = await boxes();
  assert.ok(all.some((title) => title.startsWith("train (train.py:1): 96.00 MiB")), all.join("\n"));
  await stacked.click('.flame-box[title^="forward"]');
  assert.ok(!(await boxes()).some((title) => title.startsWith("backward")));
  await stacked.fill("#search", "backward");
  assert.equal((await stacked.$$("#holders td[data-bytes]")).length, 1);
  const categories = await stacked.$$eval("#holders tr", (lines) => lines.slice(1).map((line) => line.cells[6].textContent));
  assert.deepEqual(categories, ["step 2"]);
  assert.deepEqual(stacked.troubles, []);
  await stacked.context().close();
});

test("a program that ran out of memory says so first", async () => {
  const script = join(scratch, "short.ops");
  writeFileSync(script, "alloc 1 3GiB 0\nalloc 2 100MiB 0\nalloc 3 3GiB 0\nfree 1\nalloc 4 5GiB 0\n");
  const short = await open(chromium, report("short", script, "--memory", "8GiB", "--policy", "torch-2.11"));
  const told = await checkFigures(short, script, "--memory", "8GiB", "--policy", "torch-2.11");
  assert.equal(told.ooms, 1);
  assert.match(await words("#files", short), /1 request failed: out of memory/);
  assert.match(await words(".verdict.failed .sentence", short), /^Out of memory: a request of 5\.00 GiB\. The cause: /);
  assert.match(await words("#event", short), /out of memory/);
  assert.match(await words("#free-request", short), /5\.00 GiB on stream 0/);
  assert.deepEqual(short.troubles, []);
  await short.context().close();
});

test("two files are compared", async () => {
  const both = await open(chromium, report("both", varlen, streams, "--no-compare"));
  const [one, other] = [varlen, streams].map((file) => json("replay", file, "--json"));
  assert.equal(await datum(both, "#figure-reserved", "value"), one["reserved_bytes.all.peak"]);
  assert.equal(await datum(both, "#figure-reserved", "other"), other["reserved_bytes.all.peak"]);
  assert.equal((await both.$$("canvas.timeline")).length, 2);
  assert.match(await words("#holders-sums", both), /against .* of prefetch_streams/);
  await both.click("button.side >> nth=1");
  await both.waitForFunction(() => document.getElementById("holders-at").value === "1:allocated");
  await both.waitForFunction((bytes) => document.getElementById("holders-sums").dataset.bytes === String(bytes), other["active_bytes.all.peak"]);
  assert.deepEqual(both.troubles, []);
  await both.context().close();
});

test("it can be printed and read out: each chart has a table", async () => {
  await tab.emulateMedia({ media: "print" });
  assert.ok(await tab.locator("#holders").isVisible());
  assert.ok(await tab.locator("#theme").isHidden());
  await tab.emulateMedia({ media: "screen" });
  const captions = await tab.$$eval("table > caption", (all) => all.map((caption) => caption.textContent));
  assert.ok(captions.length >= 6 && captions.every(Boolean), captions.join("; "));
  const unnamed = await tab.$$eval("canvas, select, input", (all) => all
    .filter((one) => !one.ariaLabel && one.ariaHidden !== "true" && !one.closest("label") && one.className !== "over").map((one) => one.id));
  assert.deepEqual(unnamed, []);
});

test("nothing went wrong and nothing was fetched", () => {
  assert.deepEqual(tab.troubles, []);
});

/** A recording of two steps, with call stacks and remarks. */
function stackedRecording() {
  const frames = (...names) => [...names, "train"].map((name) => ({ name, filename: "train.py", line: name === "train" ? 1 : 20 }));
  const size = 32 << 20;
  const entry = (action, at, step, name) => ({
    action, addr: 0x7f0000000000 + at * size, size, stream: 0, time_us: 1000 * at, user_metadata: `step ${step}`, frames: frames(name),
  });
  const trace = [
    { ...entry("segment_alloc", 0, 1, "forward"), size: 3 * size },
    entry("alloc", 0, 1, "forward"), entry("alloc", 1, 1, "forward"), entry("alloc", 2, 2, "backward"),
  ];
  const file = join(scratch, "stacked.json");
  writeFileSync(file, JSON.stringify({ segments: [], device_traces: [trace] }));
  return file;
}
