'use strict';
// Draws the charts of a report from the JSON in #data, and connects its controls.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById('data').textContent);
  const numColors = 8;
  const state = {axis: 'steps', smoothing: 0, isLog: false};

  // ---- Colours and theme

  /** The resolved colour of a CSS variable. */
  const colorOf = (name) => {
    const probe = document.createElement('i');
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const color = getComputedStyle(probe).color;
    probe.remove();
    return color;
  };
  const faint = (color) => color.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.3)');

  const remember = (theme) => {
    try { localStorage.setItem('sftrun-theme', theme); } catch { /* not allowed in this page */ }
  };
  const remembered = () => {
    try { return localStorage.getItem('sftrun-theme'); } catch { return null; }
  };

  // ---- Numbers

  const trimmed = (value, digits) => String(Number(value.toPrecision(digits)));
  const scaled = (value, base, units) => {
    let unit = 0;
    while (Math.abs(value) >= base && unit + 1 < units.length) { value /= base; ++unit; }
    return trimmed(value, 4) + units[unit];
  };
  const formats = {
    '': (value) => Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : trimmed(value, 5),
    count: (value) => scaled(value, 1000, ['', 'k', 'M', 'G', 'T']),
    bytes: (value) => scaled(value, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB']),
    seconds: (value) => value < 1 ? trimmed(value * 1000, 3) + ' ms' : trimmed(value, 4) + ' s',
    percent: (value) => trimmed(value, 3) + '%',
  };
  const axisNames = {steps: 'step', tokens: 'tokens', hours: 'hours'};
  const axisFormat = (value) => state.axis === 'steps' ? String(Math.round(value)) : formats.count(value);

  // ---- Curves

  /** Step to tokens or hours of a run, between its known points. */
  const onAxis = (run, step) => {
    if (state.axis === 'steps') return step;
    const {steps, [state.axis]: values} = data.runs[run];
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    if (high <= 0 || step >= steps[high]) return values[values.length - 1];
    return values[low] + (values[high] - values[low]) * (step - steps[low]) / Math.max(1, steps[high] - steps[low]);
  };

  /** Exponential moving average, divided by its weights as in TensorBoard. */
  const smoothed = (values) => {
    let mean = 0, weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = state.smoothing * mean + (1 - state.smoothing) * value;
      weight = state.smoothing * weight + 1 - state.smoothing;
      return mean / weight;
    });
  };

  /** The lines of a chart: x and y of each, colour and style. */
  const linesOf = (chart) => {
    const colorIndex = (one, index) => (data.runs.length > 1 ? one.run : index) % numColors;
    const lines = [];
    chart.curves.forEach((curve, index) => {
      const color = colorOf(`--curve-${colorIndex(curve, index)}`);
      const x = curve.x.map((step) => onAxis(curve.run, step));
      const isSmooth = chart.smooth && state.smoothing > 0 && !curve.dots;
      if (isSmooth) lines.push({x, y: curve.y, color: faint(color), label: null});
      lines.push({x, y: isSmooth ? smoothed(curve.y) : curve.y, color, label: curve.label, dots: curve.dots || curve.x.length === 1,
        dashes: curve.dots && data.runs.length > 1 ? [3, 3] : undefined});
    });
    const ends = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
    const from = Math.min(...ends), to = Math.max(...ends);
    chart.levels.forEach((level) => lines.push({x: [from, to], y: [level.y, level.y], dashes: [6, 4], label: level.label,
      color: data.runs.length > 1 ? colorOf(`--curve-${level.run % numColors}`) : colorOf('--quiet')}));
    return lines;
  };

  /** One row for each x of any line. NaN is a gap in a line, null a place where another line has a value. */
  const rowsOf = (lines) => {
    const rows = new Map();
    lines.forEach((line, column) => line.x.forEach((x, i) => {
      if (!rows.has(x)) rows.set(x, [x, ...lines.map(() => null)]);
      rows.get(x)[column + 1] = line.y[i] === null || (state.isLog && line.y[i] <= 0) ? NaN : line.y[i];
    }));
    return [...rows.values()].sort((a, b) => a[0] - b[0]);
  };

  // ---- Charts

  const graphs = [];
  let isZooming = false;

  /** A zoom of one chart is a zoom of all. */
  const zoomAll = (source, range) => {
    if (isZooming) return;
    isZooming = true;
    for (const {graph} of graphs)
      if (graph !== source) graph.updateOptions({dateWindow: range, valueRange: null});
    isZooming = false;
  };

  // One finger scrolls the page; two zoom.
  const touches = (name) => (event, graph, context) => {
    if (event.touches.length > 1 || context.touches?.length > 1)
      Dygraph.defaultInteractionModel[name](event, graph, context);
  };
  const interaction = () => ({...Dygraph.defaultInteractionModel,
    touchstart: touches('touchstart'), touchmove: touches('touchmove'), touchend: touches('touchend')});

  /** The value of a line at the last of its points up to x. */
  const valueAt = (line, x) => {
    let low = 0, high = line.x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (line.x[middle] <= x) low = middle + 1; else high = middle;
    }
    return low === 0 ? null : line.y[low - 1];
  };

  /** @param x where the pointer is; null: nowhere */
  const showKeys = (entry, x) => {
    entry.keys.replaceChildren();
    if (x !== null) entry.keys.append(Object.assign(document.createElement('span'),
      {textContent: `${axisNames[state.axis]} ${axisFormat(x)}`}));
    entry.lines.forEach((line) => {
      if (line.label === null) return;
      const key = document.createElement('span'), chip = document.createElement('i');
      chip.className = 'chip';
      chip.style.setProperty('--chip', line.color);
      const value = x === null ? null : valueAt(line, x);
      const shown = value === null ? '' : ` ${formats[entry.chart.unit](value)}`;
      key.append(chip, line.label + shown);
      entry.keys.append(key);
    });
  };

  const optionsOf = (entry) => {
    const series = {};
    entry.lines.forEach((line, index) => {
      series[`line ${index}`] = {color: line.color, strokePattern: line.dashes ?? null, drawPoints: Boolean(line.dots), pointSize: 3,
        strokeWidth: line.label === null ? 1 : 1.6};
    });
    const grid = colorOf('--line'), format = formats[entry.chart.unit];
    return {
      file: rowsOf(entry.lines), labels: ['x', ...entry.lines.map((_, index) => `line ${index}`)], series,
      legend: 'never', connectSeparatedPoints: true, logscale: state.isLog && entry.chart.smooth,
      stackedGraph: entry.chart.stacked,
      gridLineColor: grid, axisLineColor: grid, gridLineWidth: 0.5, highlightCircleSize: 3.5, labelsKMB: false,
      xRangePad: 4, interactionModel: interaction(),
      axes: {x: {axisLabelFormatter: axisFormat, pixelsPerLabel: 70}, y: {axisLabelFormatter: format, axisLabelWidth: 72, pixelsPerLabel: 32}},
      zoomCallback: (from, to) => zoomAll(entry.graph, entry.graph.isZoomed('x') ? [from, to] : null),
      highlightCallback: (event, x) => showKeys(entry, x),
      unhighlightCallback: () => showKeys(entry, null),
    };
  };

  const draw = (entry) => {
    entry.lines = linesOf(entry.chart);
    const {file, ...options} = optionsOf(entry);
    if (entry.graph) entry.graph.updateOptions({file, ...options});
    else entry.graph = new Dygraph(entry.plot, file, options);
    showKeys(entry, null);
  };
  const drawAll = () => graphs.forEach(draw);
  const resetZoom = () => graphs.forEach(({graph}) => graph.updateOptions({dateWindow: null, valueRange: null}));

  // ---- Controls

  const on = (id, event, action) => document.getElementById(id)?.addEventListener(event, action);

  const setTheme = (theme) => {
    root.dataset.theme = theme;
    drawAll();
  };
  const themes = document.getElementById('theme');
  const theme = remembered();
  if (theme && [...themes.options].some(({value}) => value === theme)) {
    themes.value = theme;
    root.dataset.theme = theme;
  }
  on('theme', 'change', () => { remember(themes.value); setTheme(themes.value); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);

  on('axis', 'change', ({target}) => { state.axis = target.value; resetZoom(); drawAll(); });
  on('smoothing', 'input', ({target}) => { state.smoothing = Number(target.value); drawAll(); });
  on('log', 'change', ({target}) => { state.isLog = target.checked; drawAll(); });
  on('reset', 'click', resetZoom);
  on('differences', 'change', ({target}) => document.body.classList.toggle('only-differences', target.checked));

  if (typeof Dygraph !== 'undefined') {
    document.querySelectorAll('figure').forEach((figure, index) => graphs.push({
      chart: data.charts[index], plot: figure.querySelector('.plot'), keys: figure.querySelector('.keys')}));
    drawAll();
    new ResizeObserver(() => graphs.forEach(({graph}) => graph.resize())).observe(document.querySelector('.charts') ?? document.body);
  }
})();
