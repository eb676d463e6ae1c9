// Takes the pictures of the terminal views of the docs: `node terminal.mjs FOLDER RECORDING MEMORY TAPE`, with a
// memory that is too small for the recorded program, and the
// program that LARDER names, in a real terminal (by `script`), as a browser draws what it printed.

import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { browser } from "./pages.mjs";

const [folder, recording, memory, tape] = process.argv.slice(2);
const larder = process.env.LARDER ?? "larder";

/** What a command prints to a terminal of this size. */
const printed = (words, columns, rows) => {
  // What comes by the other way is how far it got, which is gone when it is done.
  const command = `stty cols ${columns} rows ${rows}; ${larder} ${words} 2>/dev/null`;
  const text = execFileSync("script", ["-qec", command, "/dev/null"], {
    env: { ...process.env, TERM: "xterm-256color", COLUMNS: String(columns) },
    stdio: ["ignore", "pipe", "inherit"],
  });
  return text.toString().replaceAll("\r\n", "\n").trimStart();
};

const COLOURS = ["#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9"];

/** The escapes of a terminal as marks of a page; what moves the cursor is left out. */
const page = (text, columns) => {
  const safe = (part) => part.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  let [html, style] = ["", {}];
  for (const part of text.split(/(\x1b\[[0-9;?]*[A-Za-z])/)) {
    const escape = part.match(/^\x1b\[([0-9;?]*)([A-Za-z])$/);
    if (!escape) {
      const css = Object.entries(style).map(([name, value]) => `${name}:${value}`).join(";");
      html += css ? `<span style="${css}">${safe(part)}</span>` : safe(part);
    } else if (escape[2] === "m") {
      for (const code of (escape[1] || "0").split(";").map(Number)) {
        if (code === 0) style = {};
        else if (code === 1) style["font-weight"] = "bold";
        else if (code === 2) style.opacity = "0.6";
        else if (code >= 30 && code <= 37) style.color = COLOURS[code - 30];
        else if (code === 39) delete style.color;
        else if (code >= 90 && code <= 97) style.color = COLOURS[code - 90];
      }
    }
  }
  return `<body style="margin:0;background:#1e222a"><pre style="display:inline-block;margin:0;padding:14px 18px;
    white-space:pre-wrap;max-width:${columns}ch;
    color:#d8dee9;background:#1e222a;font:13px/17px 'DejaVu Sans Mono','Liberation Mono',monospace">${html.trimEnd()}</pre>`;
};

const VIEWS = [
  ["show", `show ${recording} --policy torch-2.11`, 110],
  ["explain", `explain ${recording} --policy torch-2.11 --memory ${memory}`, 118],
  ["tune", `tune ${recording}`, 150],
  ["top", `top ${tape} --once`, 110],
];

const chromium = await browser();
const tab = await chromium.newPage({ viewport: { width: 1500, height: 900 }, deviceScaleFactor: 1 });
for (const [name, words, columns] of VIEWS) {
  await tab.setContent(page(printed(words, columns, 60), columns));
  await tab.locator("pre").screenshot({ path: join(folder, `terminal-${name}.png`) });
}
await chromium.close();
