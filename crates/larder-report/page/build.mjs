// Builds the page: one file with its styles and its program in it.
//
// `node build.mjs` writes dist/page.html; `node build.mjs OUT` writes it elsewhere, to compare the two.
import { readFileSync, writeFileSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "dist/page.html");
const bundle = async (entry) => {
  const built = await build({
    entryPoints: [join(here, "src", entry)],
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
  });
  return built.outputFiles[0].text.trim();
};
// A script ends at the first mark that looks like its end.
const program = (await bundle("main.ts")).replaceAll("</script", "<\\/script");
const styles = await bundle("page.css");
const page = readFileSync(join(here, "src/page.html"), "utf8")
  .replace("/*styles*/", () => styles)
  .replace("/*program*/", () => program);
mkdirSync(dirname(out), { recursive: true });
writeFileSync(out, page);
