// Definitions on hover, focus and tap: the texts of docs/reference/metrics.md, which the page carries.

import { element } from "./page.js";

let definitions: Record<string, [string, string]> = {};
let shown: HTMLElement | undefined;

// Words of plots and tables that are not metrics themselves, and what they stand for.
const kMeans: Record<string, string> = {
  queue: "time_queue_s", transfer: "time_transfer_s", prefill: "time_prefill_s", recompute: "time_recompute_s",
  decode: "time_decode_s", host: "time_host_s", latency: "time_latency_s",
  TTFT: "ttft_mean_ms", TPOT: "tpot_mean_ms", ITL: "itl_mean_ms", Latency: "e2e_mean_ms",
};

export function unitOf(name: string): string {
  return definitions[name]?.[0] ?? "";
}

// A word that shows a metric's definition; plain text if there is none.
export function term(text: string, name = kMeans[text] ?? text): HTMLElement {
  const definition = definitions[name]?.[1];
  const out = element("span", text);
  if (!definition) return out;
  out.className = "term";
  out.tabIndex = 0;
  out.setAttribute("aria-description", definition);
  const show = () => place(out, name, definition);
  out.addEventListener("mouseenter", show);
  out.addEventListener("focus", show);
  out.addEventListener("mouseleave", hide);
  out.addEventListener("blur", hide);
  return out;
}

function box(): HTMLElement {
  if (!shown) {
    shown = element("div", "", "definition");
    shown.hidden = true;
    document.body.append(shown);
  }
  return shown;
}

function hide(): void {
  box().hidden = true;
}

function place(at: HTMLElement, name: string, definition: string): void {
  const out = box();
  out.replaceChildren(element("b", name), element("p", definition));
  out.hidden = false;
  const word = at.getBoundingClientRect();
  const left = Math.max(8, Math.min(word.left, document.documentElement.clientWidth - out.offsetWidth - 8));
  const below = word.bottom + 6 + out.offsetHeight < window.innerHeight;
  out.style.left = `${left}px`;
  out.style.top = `${below ? word.bottom + 6 : word.top - out.offsetHeight - 6}px`;
}

export function startGlossary(metrics: Record<string, [string, string]>): void {
  definitions = metrics;
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("scroll", hide, { passive: true });
}
