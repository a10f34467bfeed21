// Bundles src/ into one HTML file: `node build.mjs [OUT]`. The report's data replaces /*DATA*/. The result,
// report_page.html, is committed, so that building kvtwin needs no Node.js; a test compares it with a new build.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
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
  metafile: true,
  write: false,
});

// The licences of the bundled packages, which minification would remove.
function notices(metafile) {
  const packages = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const found = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (found) packages.add(found[1]);
  }
  const texts = [...packages].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const files = readdirSync(folder, { withFileTypes: true })
      .filter((entry) => entry.isFile() && /^(licen[cs]e|notice|copyright)/i.test(entry.name))
      .map((entry) => entry.name)
      .sort();
    if (files.length === 0) throw new Error(`${name} ${version} (${license}) comes without a licence text`);
    return [`${name} ${version} (${license})`, ...files.map((file) => readFileSync(join(folder, file), "utf8"))];
  });
  return texts.flat().join("\n\n").replaceAll("--", "- -");
}
const style = await build({ entryPoints: [join(here, "src/style.css")], minify: true, write: false });
const script = made.outputFiles[0].text.replaceAll("</script", "<\\/script");
// Functions, because $ is special in replacement strings.
const page = readFileSync(join(here, "page.html"), "utf8")
  .replace("/*NOTICES*/", () => notices(made.metafile))
  .replace("/*STYLE*/", () => style.outputFiles[0].text)
  .replace("/*SCRIPT*/", () => script);
writeFileSync(process.argv[2] ?? join(here, "report_page.html"), page);
