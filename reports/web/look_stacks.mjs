// Runs in the page and checks that stacked areas and bars are drawn at the sums of the values below them. Positions
// come from the layout that the canvas is painted from; the expected sums are computed here from the plot's input. A
// plot that sums something else (times, for example) has its tops elsewhere.
export function stacksOf() {
  const out = [];
  for (const { label, chart } of window.kvtwinCharts) {
    const found = { label, checked: 0, problem: "" };
    const sums = new Map();
    chart.getModel().eachSeries((series) => {
      const stack = series.get("stack");
      if (!stack) return;
      const below = sums.get(stack) ?? [];
      sums.set(stack, below);
      const data = series.getData();
      const lies = chart.getModel().getComponent("yAxis", 0).get("type") === "category";
      const points = data.getLayout("points");
      const given = series.option.data;
      for (let i = 0; i < given.length; ++i) {
        const value = Array.isArray(given[i]) ? given[i][lies ? 0 : 1] : given[i];
        below[i] = (below[i] ?? 0) + value;
        const box = points ? undefined : data.getItemLayout(i);
        const pixel = points ? [points[2 * i], points[2 * i + 1]] : lies ? [box.x + box.width, box.y] : [box.x, box.y];
        const tops = chart.convertFromPixel({ seriesIndex: series.seriesIndex }, pixel);
        const top = tops[lies ? 0 : 1];
        // Pixel positions are accurate to about 0.01.
        const axis = chart.getModel().getComponent(lies ? "xAxis" : "yAxis", 0).axis.scale.getExtent();
        const far = Math.abs(top - below[i]) > 0.01 * (axis[1] - axis[0]);
        if (!(Number.isFinite(top) && Number.isFinite(below[i])) || far) {
          found.problem ||= `plot "${label}": ${series.name}, value ${i}: the stack is drawn up to ${top}, and its values sum to ${below[i]}`;
        }
        ++found.checked;
      }
    });
    out.push(found);
  }
  return out;
}
