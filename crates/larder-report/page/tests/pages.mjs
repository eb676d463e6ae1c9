// Pages: made by the program, and opened in Chromium.

import { execFileSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const root = resolve(dirname(fileURLToPath(import.meta.url)), "../../../..");
const program = process.env.LARDER ?? join(root, "target/release/larder");
export const scratch = process.env.SCRATCH ?? join(root, "target/page");
mkdirSync(scratch, { recursive: true });

export function larder(...words) {
  return execFileSync(program, words, { encoding: "utf8", maxBuffer: 1 << 30 });
}

export const json = (...words) => JSON.parse(larder(...words));

/** Writes the page of a run; where it is. */
export function report(name, ...words) {
  const page = join(scratch, `${name}.html`);
  larder("report", ...words, "-o", page);
  return page;
}

/** Chromium as Debian packs it; Playwright's own builds are not needed. */
export function browser() {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", ...quiet] });
}

/** Opens a page and waits until all views are filled; what goes wrong in it is kept in `troubles`. */
export async function open(browser, page, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, ...options });
  const tab = await context.newPage();
  tab.troubles = [];
  tab.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) tab.troubles.push(message.text());
  });
  tab.on("pageerror", (error) => tab.troubles.push(String(error)));
  tab.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith("file:") && !url.startsWith("data:") && !url.startsWith("blob:")) tab.troubles.push(`asked for ${url}`);
  });
  await tab.goto(`file://${page}`);
  await ready(tab);
  return tab;
}

export async function ready(tab) {
  await tab.waitForFunction(() => document.documentElement.dataset.ready === "1", null, { timeout: 60_000 });
}

/** A number that an element carries in its data. */
export async function datum(tab, selector, name) {
  return Number(await tab.getAttribute(selector, `data-${name}`));
}
