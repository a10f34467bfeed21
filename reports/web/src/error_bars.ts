// Error bars of a plot of points.

interface Api {
  value: (dimension: number) => number;
  coord: (point: (number | string)[]) => number[];
}

// The axis range includes both ends.
export const kEncode = { x: 0, y: [1, 2] };

// An error bar: a vertical line at the first dimension, from the second to the third, with end marks.
export function errorBar(colour: string, width = 2): (params: unknown, api: Api) => object {
  return (_, api) => {
    const low = api.coord([api.value(0), api.value(1)]);
    const high = api.coord([api.value(0), api.value(2)]);
    const x = low[0] ?? 0;
    const line = (x1: number, y1: number, x2: number, y2: number) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour, lineWidth: width } });
    return {
      type: "group",
      children: [
        line(x, low[1] ?? 0, x, high[1] ?? 0),
        line(x - 5, low[1] ?? 0, x + 5, low[1] ?? 0),
        line(x - 5, high[1] ?? 0, x + 5, high[1] ?? 0),
      ],
    };
  };
}
