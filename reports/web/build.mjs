// One HTML file out of src/: `node build.mjs OUT`. The data goes where /*DATA*/ stands.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const made = await build({
  entryPoints: [join(here, "src/main.ts")],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  legalComments: "none",
  write: false,
});
const style = await build({ entryPoints: [join(here, "src/style.css")], minify: true, write: false });
const script = made.outputFiles[0].text.replaceAll("</script", "<\\/script");
// Functions, because replacement strings read $ as their own.
const page = readFileSync(join(here, "page.html"), "utf8")
  .replace("/*STYLE*/", () => style.outputFiles[0].text)
  .replace("/*SCRIPT*/", () => script);
writeFileSync(process.argv[2] ?? join(here, "report_page.html"), page);
