// Uses a report as its reader would, in headless Chromium, and checks what happens:
//   node look_use.mjs REPORT.html
// The exit status is 1 if
//   - a metric's name shows no definition under the pointer;
//   - the pointer over a plot over time shows no cursor in another one, or not at the same moment;
//   - dragging does not zoom all plots over time into the same interval, or a double click does not show the whole run;
//   - a click on a heat map does not show the point's run;
//   - the page is wider than a window of 390 pixels, or shows the sections' links or one column of plots on paper.
// What a page does not have (plots over time, a heat map) is not checked; --needs=time,map requires it.
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [file, ...options] = process.argv.slice(2);
const needs = (options.find((word) => word.startsWith("--needs=")) ?? "--needs=").slice(8).split(",").filter(Boolean);
const browser = await chromium.launch({
  executablePath: process.env.KVTWIN_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu"],
});
const problems = [];
const seen = [];
const expect = (good, text) => good || problems.push(text);

async function open(width) {
  const page = await browser.newPage({ viewport: { width, height: 900 } });
  page.on("pageerror", (error) => problems.push(`page: ${error.message}`));
  await page.goto(pathToFileURL(file).href);
  await page.waitForSelector('html[data-ready="true"]');
  return page;
}

// Scrolls to a plot and waits until it is drawn.
async function drawn(page, figure) {
  await figure.scrollIntoViewIfNeeded();
  await figure.locator("canvas").first().waitFor();
  return page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60))));
}

const page = await open(1440);

const term = page.locator(".term").first();
if ((await term.count()) > 0) {
  seen.push("definition");
  await term.hover();
  const shown = await page.locator(".definition").innerText();
  expect(shown.length > 10, `"${await term.innerText()}" shows the definition "${shown}"`);
  await page.mouse.move(0, 0);
  expect(await page.locator(".definition").isHidden(), "a definition stays after the pointer has left");
}

// Draws all plots, since only those have cursors.
await page.evaluate(async () => {
  for (const box of document.querySelectorAll(".plot")) {
    box.scrollIntoView();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 40)));
  }
});
// The moments, as fractions of the shown interval, at which the cursors are.
const cursors = () =>
  page.evaluate(() =>
    window.kvtwinCharts.flatMap(({ chart }) => {
      const line = chart.getDom().querySelector(".cursor");
      if (!line || line.hidden) return [];
      const area = chart.getModel().getComponent("grid", 0).coordinateSystem.getRect();
      return [(line.offsetLeft - area.x) / area.width];
    }),
  );
const windows = () =>
  page.evaluate(() =>
    window.kvtwinCharts
      .filter(({ chart }) => chart.getDom().querySelector(".cursor"))
      .map(({ chart }) => chart.getOption().dataZoom[0])
      .map(({ start, end }) => [start, end]),
  );
const linked = (await windows()).length;
if (linked > 1) {
  seen.push("time");
  const figure = page.locator("figure:has(.cursor)").first();
  await drawn(page, figure);
  const box = await figure.locator(".plot").boundingBox();
  await page.mouse.move(box.x + 0.5 * box.width, box.y + 0.5 * box.height);
  const at = await cursors();
  expect(at.length === linked, `${at.length} of ${linked} plots over time show the cursor`);
  // Intervals of steps are wider than a pixel.
  expect(Math.max(...at) - Math.min(...at) < 0.03, `the cursors are at the fractions ${at.map((one) => one.toFixed(3))} of the time`);
  expect((await figure.locator(".readout").innerText()) !== "", "the cursor shows no value");
  await page.mouse.down();
  await page.mouse.move(box.x + 0.75 * box.width, box.y + 0.5 * box.height, { steps: 4 });
  await page.mouse.up();
  const zoomed = await windows();
  expect(zoomed.every(([start, end]) => Math.abs(start - 50) < 10 && Math.abs(end - 75) < 10), `dragging from half to three quarters shows ${JSON.stringify(zoomed)} %`);
  await page.mouse.dblclick(box.x + 0.5 * box.width, box.y + 0.5 * box.height);
  expect((await windows()).every(([start, end]) => start === 0 && end === 100), `after a double click the plots show ${JSON.stringify(await windows())} %`);
}

const map = page.locator("figure", { hasText: "Heat map" }).first();
if ((await map.count()) > 0) {
  seen.push("map");
  await drawn(page, map);
  const place = await page.evaluate(() => {
    const { chart } = window.kvtwinCharts.find(({ label }) => label.includes("Heat map"));
    const [x, y] = chart.convertToPixel({ seriesIndex: 0 }, [0, 0]);
    const at = chart.getDom().getBoundingClientRect();
    return { x: at.left + x, y: at.top + y, cell: chart.getOption().series[0].data.find(({ value }) => value[0] === 0 && value[1] === 0).value };
  });
  await page.mouse.click(place.x, place.y);
  const text = await page.locator(".chosen").first().innerText();
  const first = await page.evaluate(() => {
    const { chart } = window.kvtwinCharts.find(({ label }) => label.includes("Heat map"));
    return [chart.getOption().xAxis[0].data[0], chart.getOption().yAxis[0].data[0]];
  });
  const head = text.split("\n")[0] ?? "";
  expect(first.every((value) => head.includes(`=${value}`)), `a click on the first cell, ${first.join(" and ")}, shows "${head}"`);
  expect(/kvtwin report .*\/points\/|Its run is on this page/.test(text), "a chosen point has no way to its run");
}
await page.close();

const narrow = await open(390);
const wide = await narrow.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
expect(wide <= 0, `the page is ${wide} pixels wider than a window of 390`);
await narrow.close();

const paper = await open(794);
await paper.emulateMedia({ media: "print" });
const printed = await paper.evaluate(() => {
  const grid = document.querySelector(".plots");
  return { nav: getComputedStyle(document.querySelector("nav")).display, columns: grid ? getComputedStyle(grid).gridTemplateColumns.split(" ").length : 2 };
});
expect(printed.nav === "none" && printed.columns >= 2, `on paper: ${JSON.stringify(printed)}`);
await browser.close();
for (const need of needs) expect(seen.includes(need), `the page has no ${need}`);
console.log(JSON.stringify({ seen, problems }, null, 2));
process.exit(problems.length > 0 ? 1 : 0);
