import { BarChart, CustomChart, HeatmapChart, LineChart, ParallelChart, ScatterChart } from "echarts/charts";
import {
  DataZoomComponent, GridComponent, LegendComponent, ParallelComponent, TitleComponent,
  TooltipComponent, VisualMapComponent,
} from "echarts/components";
import * as echarts from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

import { readReport, type Report } from "./data.js";
import { comparison } from "./comparison.js";
import { qualities } from "./quality.js";
import { validations } from "./validation.js";
import { heads } from "./kv.js";
import { element, section, start } from "./page.js";
import { attribution, latencies, memory, overRun, overview, unpackAll } from "./runs.js";
import { plans } from "./plan.js";
import { gantt } from "./sessions.js";
import { sweeps } from "./sweep.js";
import { transfers } from "./transfers.js";

echarts.use([
  BarChart, CanvasRenderer, CustomChart, DataZoomComponent, GridComponent, HeatmapChart, LegendComponent,
  LineChart, ParallelChart, ParallelComponent, ScatterChart, TitleComponent, TooltipComponent,
  VisualMapComponent,
]);

function provenance(report: Report): void {
  const into = section("provenance", "Provenance", "The runs, and the commands that repeat them.");
  into.append(element("p", `This page: ${report.command} (kvtwin ${report.version})`));
  for (const plan of report.plans) {
    if (plan.data.command) into.append(element("p", `${plan.dir}: ${plan.data.command}`));
  }
  for (const run of report.runs) {
    const details = document.createElement("details");
    const backend = run.summary["backend"] ?? "";
    details.append(element("summary", `${run.name}: backend ${backend}, seed ${run.summary["seed"]}, inputs ${run.summary["inputs"]}, decisions ${run.summary["decisions"]}`));
    details.append(element("p", `kvtwin run scenario.resolved.textproto, from ${run.dir}:`));
    details.append(element("pre", run.scenario));
    into.append(details);
  }
}

const report = readReport();
plans(report.plans);
if (report.runs.length > 0) {
  const requests = unpackAll(report.runs);
  overview(report.runs);
  comparison(report.runs);
  latencies(report.runs, requests);
  overRun(report.runs, requests);
  transfers(report.runs);
  attribution(report.runs);
  memory(report.runs);
  heads(report.runs);
  gantt(report.runs, requests);
}
sweeps(report.sweeps);
validations(report.validations);
qualities(report.qualities);
provenance(report);
start();
document.documentElement.dataset["ready"] = "true";
