// Opens a report in headless Chromium as its reader would (file://, no network) and checks it:
//   node look.mjs REPORT.html [--light=PNG] [--dark=PNG] [--section=ID] [--sections=ID,...] [--plots=TEXT,...]
//     [--stacks=TEXT,...] [--texts=TEXT,...] [--absent=TEXT,...] [--ready-ms-max=N] [--cpu-ms-max=N]
//     [--nothing-is-fine]
// Prints its observations as JSON. The exit status is 1 if
//   - there is a console error, a failed request or an empty plot;
//   - a section of --sections or a plot of --plots (a part of its name) is missing;
//   - a text of --texts is not on the page, or one of --absent is;
//   - the page is not ready in time, or needs more time of a processor than --cpu-ms-max, which does not depend on
//     other load on the machine;
//   - a stack of areas or bars is not drawn at the sum of its values, or a plot of --stacks has no stack;
//   - the arrow keys show nothing.
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

import { stacksOf } from "./look_stacks.mjs";

const [file, ...options] = process.argv.slice(2);
const option = (name) => options.find((word) => word.startsWith(`--${name}=`))?.slice(name.length + 3);
const browser = await chromium.launch({
  executablePath: process.env.KVTWIN_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu"],
});
async function taskMs(session) {
  const { metrics } = await session.send("Performance.getMetrics");
  return 1000 * (metrics.find(({ name }) => name === "TaskDuration")?.value ?? 0);
}
const problems = [];
const seen = {};
for (const scheme of ["light", "dark"]) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, colorScheme: scheme });
  page.on("console", (message) => message.type() === "error" && problems.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => problems.push(`page: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith("file:") && !request.url().startsWith("data:")) problems.push(`request: ${request.url()}`);
  });
  // The fastest of three loads counts, to exclude other load on the machine.
  const most = Number(option("ready-ms-max") ?? Infinity);
  const cpuMost = Number(option("cpu-ms-max") ?? Infinity);
  let took = Infinity;
  let cpu = Infinity;
  const performance = await page.context().newCDPSession(page);
  await performance.send("Performance.enable", { timeDomain: "threadTicks" });
  for (let load = 0; load < 3 && (load === 0 || took > most || cpu > cpuMost); ++load) {
    const before = Date.now();
    const start = await taskMs(performance);
    await page.goto(pathToFileURL(file).href);
    await page.waitForSelector('html[data-ready="true"]');
    took = Math.min(took, Date.now() - before);
    // The counter starts again with the page's process.
    const end = await taskMs(performance);
    cpu = Math.min(cpu, end >= start ? end - start : end);
  }
  seen[`${scheme}_ms`] = took;
  seen[`${scheme}_cpu_ms`] = Math.round(cpu);
  if (cpu > cpuMost) problems.push(`${scheme}: ready after ${Math.round(cpu)} ms of a processor at best, not ${cpuMost}`);
  if (took > most) problems.push(`${scheme}: ready after ${took} ms at best, not ${most}`);
  // Plots are drawn when they come into view.
  await page.evaluate(async () => {
    for (const box of document.querySelectorAll(".plot")) {
      box.scrollIntoView();
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)));
    }
    window.scrollTo(0, 0);
  });
  const plots = await page.evaluate(() =>
    [...document.querySelectorAll(".plot")].map((box) => {
      const canvas = box.querySelector("canvas");
      const label = box.getAttribute("aria-label");
      if (!canvas) return { label, marks: 0 };
      // Below the legend, which is coloured even without data.
      const top = Math.round((40 * canvas.height) / canvas.clientHeight);
      const { data } = canvas.getContext("2d").getImageData(0, top, canvas.width, canvas.height - top);
      let marks = 0;
      for (let i = 0; i < data.length; i += 4) {
        // Coloured pixels are data: axes and texts are grey.
        const [r, g, b, a] = [data[i], data[i + 1], data[i + 2], data[i + 3]];
        if (a > 100 && Math.max(r, g, b) - Math.min(r, g, b) > 40) {
          ++marks;
        }
      }
      return { label, marks };
    }),
  );
  seen.plots = plots.length;
  // Plots of a run without requests show a message.
  const nothing = options.includes("--nothing-is-fine")
    ? await page.evaluate(() => window.kvtwinCharts.filter(({ chart }) => chart.getOption().title?.[0]?.text).map(({ label }) => label))
    : [];
  if (nothing.length > 0) seen.nothing = nothing;
  for (const { label, marks } of plots) if (marks < 50 && !nothing.includes(label)) problems.push(`${scheme}: plot "${label}" is empty`);
  for (const id of (option("sections") ?? "").split(",").filter(Boolean)) {
    const plots = await page.evaluate((at) => document.querySelectorAll(`#${at} .plot`).length, id);
    if (plots === 0) problems.push(`${scheme}: no plot in a section "${id}"`);
  }
  for (const name of (option("plots") ?? "").split(",").filter(Boolean)) {
    if (!plots.some(({ label }) => label.includes(name))) problems.push(`${scheme}: no plot "${name}"`);
  }
  const text = await page.evaluate(() => document.body.innerText);
  for (const one of (option("texts") ?? "").split(",").filter(Boolean)) if (!text.includes(one)) problems.push(`${scheme}: the page does not have "${one}"`);
  for (const one of (option("absent") ?? "").split(",").filter(Boolean)) if (text.includes(one)) problems.push(`${scheme}: the page has "${one}"`);
  const stacks = await page.evaluate(stacksOf);
  seen.stack_tops = stacks.reduce((sum, one) => sum + one.checked, 0);
  for (const { problem } of stacks) if (problem) problems.push(`${scheme}: ${problem}`);
  for (const name of (option("stacks") ?? "").split(",").filter(Boolean)) {
    if (!stacks.some(({ label, checked }) => label.includes(name) && checked > 0)) problems.push(`${scheme}: no stack in a plot "${name}"`);
  }
  // Keyboard navigation: the first stops are the skip link, the button and the sections.
  await page.keyboard.press("Tab");
  seen.first_stop = await page.evaluate(() => document.activeElement?.textContent);
  if (seen.first_stop !== "Skip to the results") problems.push(`${scheme}: the first stop of Tab is "${seen.first_stop}"`);
  // Arrow keys show values, as a pointer does.
  const shown = await page.evaluate(async () => {
    const box = [...document.querySelectorAll(".plot")][0];
    if (!box) return "no plot";
    box.scrollIntoView();
    box.focus();
    for (let i = 0; i < 3; ++i) box.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    await new Promise((done) => setTimeout(done, 200));
    return [...box.children].map((part) => part.innerText ?? "").join("").trim();
  });
  if (shown === "" && nothing.length === 0) problems.push(`${scheme}: the arrow keys show nothing in the first plot`);
  await page.keyboard.press("Escape");
  await page.evaluate(() => window.scrollTo(0, 0));
  const picture = option(scheme);
  const section = option("section");
  if (picture && section) await page.locator(`#${section}`).screenshot({ path: picture });
  else if (picture) await page.screenshot({ path: picture, fullPage: true });
  await page.close();
}
await browser.close();
console.log(JSON.stringify({ ...seen, problems }, null, 2));
process.exit(problems.length > 0 ? 1 : 0);
