// Takes the pictures of the docs: `node pictures.mjs FOLDER ONE TWO`, with a page of a recording that has call
// stacks and one of a recording that was fragmented.

import { join } from "node:path";
import { browser, open } from "./pages.mjs";

const [folder, stacked, fragmented] = process.argv.slice(2);
const chromium = await browser();
const viewport = { width: 1180, height: 800 };

const picture = async (tab, selector, name) => {
  await tab.waitForTimeout(400);
  await tab.locator(selector).screenshot({ path: join(folder, `${name}.png`) });
};

const varlen = await open(chromium, fragmented, { viewport });
await varlen.click("#near-peak");
const box = await varlen.locator("canvas.timeline").boundingBox();
await varlen.mouse.click(box.x + box.width * 0.59, box.y + box.height * 0.62);
await varlen.mouse.move(box.x + box.width * 0.565, box.y + box.height * 0.48);
await picture(varlen, "#over-time", "report-time");
await varlen.mouse.move(5, 5);
await varlen.click("button[data-goto=allocated]");
await varlen.waitForTimeout(300);
await picture(varlen, "#segments", "report-segments");
await varlen.click("#whole");
await varlen.addStyleTag({ content: ".scroll { max-height: 190px; }" });
await picture(varlen, "#fragmentation", "report-fragmentation");
await picture(varlen, "#settings-section", "report-settings");

const graphs = await open(chromium, stacked, { viewport, colorScheme: "dark" });
await graphs.addStyleTag({ content: ".scroll { max-height: 190px; }" });
await picture(graphs, "#who", "report-who");
await graphs.locator("#over-time").scrollIntoViewIfNeeded();
const plot = await graphs.locator("canvas.timeline").boundingBox();
await graphs.mouse.move(plot.x + plot.width * 0.84, plot.y + plot.height * 0.66);
await picture(graphs, "#over-time", "report-dark");
await chromium.close();
