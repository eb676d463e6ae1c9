// Measures a page in the browser: how long until the first picture, and how many frames a second while it is
// panned, zoomed out and zoomed in. Prints one line of numbers for each page.
//
// `node measure.mjs PAGE …`

import { browser, ready } from "./pages.mjs";

const ROUNDS = 3;
/** How many moves of the pointer a pan has, one for each frame that a screen of 60 Hz shows. */
const MOVES = 120;

const median = (values) => [...values].sort((one, other) => one - other)[Math.floor(values.length / 2)];

/** Drags from side to side for as long as the moves take, and counts the frames that were drawn. */
async function pan(tab) {
  const box = await tab.locator("canvas.timeline").boundingBox();
  const [left, right, y] = [box.x + 120, box.x + box.width - 60, box.y + box.height / 3];
  await tab.evaluate(() => {
    window.frames_ = [];
    const count = (now) => {
      window.frames_.push(now);
      if (window.frames_) requestAnimationFrame(count);
    };
    requestAnimationFrame(count);
  });
  await tab.mouse.move(right, y);
  await tab.mouse.down();
  const start = await tab.evaluate(() => performance.now());
  for (let move = 0; move < MOVES; move++) {
    const share = Math.abs(((move / MOVES) * 4) % 2 - 1);
    await tab.mouse.move(left + (right - left) * share, y);
  }
  await tab.mouse.up();
  const frames = await tab.evaluate((start) => window.frames_.filter((at) => at >= start), start);
  const seconds = (frames[frames.length - 1] - frames[0]) / 1000;
  const gaps = frames.slice(1).map((at, index) => at - frames[index]);
  return { rate: (frames.length - 1) / seconds, slowest: Math.max(...gaps) };
}

async function measure(chromium, page) {
  const first = [];
  let tab;
  for (let round = 0; round < ROUNDS; round++) {
    await tab?.context().close();
    const context = await chromium.newContext({ viewport: { width: 1400, height: 900 } });
    tab = await context.newPage();
    await tab.goto(`file://${page}`, { waitUntil: "commit" });
    await tab.waitForFunction(() => performance.getEntriesByName("first-picture").length > 0, null, { timeout: 120_000 });
    first.push(await tab.evaluate(() => performance.getEntriesByName("first-picture")[0].startTime));
  }
  await ready(tab);
  // Zoomed to a half, there is somewhere to go.
  await tab.click("#zoom-in");
  await tab.waitForTimeout(300);
  const wide = await pan(tab);
  await tab.click("#near-peak");
  await tab.waitForTimeout(300);
  const near = await pan(tab);
  await tab.context().close();
  return { first: median(first), wide, near };
}

const chromium = await browser();
for (const page of process.argv.slice(2)) {
  const { first, wide, near } = await measure(chromium, page);
  console.log([first, wide.rate, wide.slowest, near.rate, near.slowest].map((value) => value.toFixed(1)).join(" "));
}
await chromium.close();
