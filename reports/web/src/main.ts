// The page: reads its data and draws one section after the other.

import { BarChart, CustomChart, HeatmapChart, LineChart, ParallelChart, ScatterChart } from "echarts/charts";
import {
  DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, ParallelComponent, TitleComponent,
  TooltipComponent, VisualMapComponent,
} from "echarts/components";
import * as echarts from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

import { readReport, type Report } from "./data.js";
import { comparison } from "./comparison.js";
import { qualities } from "./quality.js";
import { validations } from "./validation.js";
import { heads } from "./kv.js";
import { startGlossary } from "./glossary.js";
import { header, summary } from "./header.js";
import { element, section, start } from "./page.js";
import { attribution, latencies, memory, metrics, overRun, unpackAll } from "./runs.js";
import { plans } from "./plan.js";
import { gantt } from "./sessions.js";
import { sweeps } from "./sweep.js";
import { timeAxis } from "./time_axis.js";
import { transfers } from "./transfers.js";

echarts.use([
  BarChart, CanvasRenderer, CustomChart, DataZoomComponent, GridComponent, HeatmapChart, LegendComponent,
  LineChart, MarkLineComponent, ParallelChart, ParallelComponent, ScatterChart, TitleComponent, TooltipComponent,
  VisualMapComponent,
]);

function provenance(report: Report): void {
  const into = section("provenance", "Provenance", "The runs, and the commands that repeat them.");
  into.append(element("p", `This page: ${report.command} (kvtwin ${report.version})`));
  for (const plan of report.plans) {
    if (plan.data.command) into.append(element("p", `${plan.dir}: ${plan.data.command}`));
  }
  for (const sweep of report.sweeps) {
    if (sweep.command) into.append(element("p", `${sweep.dir}: ${sweep.command}`));
  }
  for (const run of report.runs) {
    const backend = run.summary["backend"] ?? "";
    if (run.scenario === "") {
      into.append(element("p", `${run.name}: ${backend === "measured" ? "imported from a real server's files" : backend}, in ${run.dir}`));
      continue;
    }
    const details = document.createElement("details");
    details.append(element("summary", `${run.name}: backend ${backend}, kvtwin ${run.summary["version"]}, seed ${run.summary["seed"]}, inputs ${run.summary["inputs"]}, decisions ${run.summary["decisions"]}`));
    details.append(element("p", `kvtwin run scenario.resolved.textproto, from ${run.dir}:`));
    details.append(element("pre", run.scenario));
    into.append(details);
  }
}

const report = readReport();
startGlossary(report.metrics);
header(report);
plans(report.plans);
sweeps(report);
if (report.runs.length > 0) {
  const requests = unpackAll(report.runs);
  const axis = timeAxis(report.runs);
  attribution(summary(report), report.runs);
  comparison(report.runs);
  metrics(report.runs);
  latencies(report, requests);
  overRun(report, requests, axis);
  transfers(report.runs, axis);
  memory(report.runs);
  heads(report.runs);
  gantt(report.runs, requests);
}
validations(report.validations);
qualities(report.qualities);
provenance(report);
start();
document.documentElement.dataset["ready"] = "true";
