// Settings: what other settings would have needed, and the line to paste.

import { paste } from "./paste";
import type { State } from "./state";
import { element, made } from "./state";
import { bytes, change, number } from "./words";

export function showSettings(state: State): void {
  const fill = () => {
    const { facts } = state.side.run;
    element("settings-section").hidden = facts.compared.length === 0;
    element("settings-nav").hidden = facts.compared.length === 0;
    const head = made("tr");
    const words = ["policy", "settings", "peak reserved", "saved", "peak active", "overhead", "retries", "out of memory", "driver time", "to set"];
    for (const word of words) head.append(made("th", "", word));
    const isFailed = facts.failures.length > 0;
    // What is advised stands first.
    const ordered = [...facts.compared].sort((one, other) => Number(other.is_advised) - Number(one.is_advised));
    const rows = ordered.map((row) => {
      const line = made("tr", row.is_advised ? "best" : "");
      const name = row.is_recorded ? `${row.conf} [as recorded]` : row.conf;
      line.append(made("td", "", row.policy), made("td", "code", name));
      const reserved = made("td", "", bytes(row.reserved));
      reserved.dataset.bytes = String(row.reserved);
      // To run at all comes before everything else.
      const kind = row.ooms > 0 ? "more" : isFailed || row.saved > 0 ? "less" : row.saved < 0 ? "more" : "";
      const word = row.ooms > 0 ? "fails" : isFailed ? "runs" : row.saved === 0 ? "0" : change(row.saved);
      line.append(reserved, made("td", kind, word));
      const numbers = [bytes(row.active), row.overhead.toFixed(3), number(row.retries)];
      for (const cell of numbers) line.append(made("td", "", cell));
      line.append(made("td", row.ooms > 0 ? "small" : "", number(row.ooms)), made("td", "", row.driver));
      line.append(row.paste ? paste(row.paste) : made("td"));
      if (row.standing) line.children[1].append(made("div", "remark", row.standing));
      if (row.remark) line.children[1].append(made("div", "remark", row.remark));
      return line;
    });
    const caption = made("caption", "", "What the same program needs under other settings, and the bytes that each saves against the run that is shown");
    element("compared").replaceChildren(caption, head, ...rows);
    // What stands between two strokes is to be typed.
    const parts = facts.answer.split("`").map((part, at) => (at % 2 === 1 ? made("code", "", part) : part));
    element("answer").replaceChildren(...parts);
    element("driver-remark").textContent = facts.driver_remark;
  };
  state.on(["side"], fill);
  fill();
}
