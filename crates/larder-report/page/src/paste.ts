// A line to paste, with a button that copies it.

import { made } from "./state";

export function paste(text: string, tag = "td"): HTMLElement {
  const cell = made(tag, "paste");
  cell.append(made("code", "", text), " ");
  const button = made("button", "copy", "copy");
  button.setAttribute("aria-label", `copy ${text}`);
  button.addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents(cell.firstChild!);
    getSelection()?.removeAllRanges();
    getSelection()?.addRange(range);
    // From a file a page may not always write to the clipboard; then the text is selected at least.
    const said = (word: string) => {
      button.textContent = word;
      setTimeout(() => (button.textContent = "copy"), 1500);
    };
    navigator.clipboard?.writeText(text).then(() => said("copied"), () => said("selected"));
  });
  cell.append(button);
  return cell;
}
