"use strict";
(() => {
  const { plots, cards, runs } = JSON.parse(document.getElementById("data").textContent);
  const AT_ONCE = 20;

  // Plots

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coarse = matchMedia("(pointer: coarse)");
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Plotly reads markup in names.
  const escaped = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);

  function traces(plot) {
    return plot.curves.flatMap((curve) => {
      const line = { color: color(`--curve-${curve.style % 7}`), dash: dashes[curve.style % 4], width: 2 };
      const short = curve.x.length <= 40;
      const few = curve.x.length <= 12;
      const form = plot.share ? ".1%" : ".4~g";
      const main = {
        x: curve.x, y: curve.y, name: escaped(curve.name), line, marker: { color: line.color, size: few ? 6 : 4 },
        mode: plot.path && !few ? "markers" : short ? "lines+markers" : "lines",
        hoverlabel: { namelength: 24 },
        hovertemplate: (plot.path ? "%{x:.4~g} tokens: " : "") + `%{y:${form}}`,
      };
      const found = [main];
      if (plot.path && few && curve.x.length > 1) {
        main.mode += "+text";
        main.text = curve.x.map((_, i) => (i === 0 ? "first" : i === curve.x.length - 1 ? "latest" : ""));
        main.textposition = "top center";
      }
      if (curve.low) {
        const edge = { x: curve.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
        main.customdata = curve.low.map((low, i) => [low, curve.high[i]]);
        main.hovertemplate += ` (%{customdata[0]:${form}} to %{customdata[1]:${form}})`;
        found.unshift(
          { ...edge, y: curve.low },
          { ...edge, y: curve.high, fill: "tonexty", fillcolor: line.color + "33" },
        );
      }
      if (curve.smooth) {
        main.opacity = 0.4;
        main.line = { ...line, dash: "solid", width: 1 };
        found.push({ x: curve.smooth[0], y: curve.smooth[1], mode: "lines", line, hoverinfo: "skip" });
      }
      return found;
    });
  }

  function draw(element) {
    const plot = plots[element.id];
    const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), automargin: true };
    const values = plot.curves.flatMap((curve) => curve.y.concat(curve.high || [])).filter((y) => y !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const all = plot.share && high > 0.5;
    const layout = {
      height: 240, margin: { l: 48, r: 12, t: 8, b: 40 }, showlegend: false,
      paper_bgcolor: "transparent", plot_bgcolor: "transparent",
      font: { color: color("--text"), family: "system-ui, sans-serif", size: 12 },
      hoverlabel: { bgcolor: color("--surface"), bordercolor: color("--line"), font: { color: color("--text") } },
      hovermode: plot.path ? "closest" : "x unified", dragmode: coarse.matches ? false : "zoom",
      xaxis: { ...axis, title: { text: plot.path ? "tokens" : "step", standoff: 4 } },
      yaxis: {
        ...axis, tickformat: !plot.share ? "~g" : all || high - low > 0.04 ? ".0%" : ".2~%",
        ...(all ? { range: [0, 1.02] } : {}),
      },
    };
    Plotly.react(element, traces(plot), layout, { responsive: true, displayModeBar: false });
    element.dataset.drawn = "";
  }

  const elements = [...document.querySelectorAll(".plot")];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((entry) => entry.isIntersecting)) {
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "400px" });
  elements.forEach((element) => seen.observe(element));
  dark.addEventListener("change", () => elements.filter((e) => "drawn" in e.dataset).forEach(draw));
  addEventListener("beforeprint", () => elements.filter((e) => !("drawn" in e.dataset)).forEach(draw));

  // Samples: every text goes into the page as text.

  const form = document.getElementById("filters");
  if (!form) return;
  const list = document.getElementById("cards");
  const more = document.getElementById("more");
  const count = document.getElementById("count");
  let matching = [];

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  const latest = (card) => card.answers[card.answers.length - 1];
  const judged = (card) => (card.split === "train" ? card.answers : [latest(card)]);
  const isPair = (card) => card.split !== "train" && card.answers.length > 1;
  const results = {
    "": () => true,
    right: (card) => judged(card).some((answer) => answer.right === true),
    wrong: (card) => judged(card).some((answer) => answer.right === false),
    gained: (card) => isPair(card) && card.answers[0].right === false && latest(card).right === true,
    lost: (card) => isPair(card) && card.answers[0].right === true && latest(card).right === false,
    changed: (card) => isPair(card) && card.answers[0].text !== latest(card).text,
  };

  const texts = new Map();
  function textOf(card) {
    if (!texts.has(card)) {
      const parts = [card.question, ...card.prompt.map(([, text]) => text), ...card.answers.map((a) => a.text)];
      texts.set(card, parts.join("\n").toLowerCase());
    }
    return texts.get(card);
  }

  function score([name, value]) {
    const [kind, sign] =
      value === null ? ["none", "–"] : value >= 1 ? ["good", "✓"] : value <= 0 ? ["bad", "✗"] : ["part", "◐"];
    const shown = value === null ? "no verdict" : String(Number(value.toPrecision(3)));
    return make("li", `score ${kind}`, `${sign} ${name} ${shown}`);
  }

  function answer(card, given, n) {
    const box = make("div", "answer");
    const verdict = given.right === null ? "no verdict" : given.right ? "right ✓" : "wrong ✗";
    const when = !isPair(card) ? "" : n === 0 ? "first, " : "latest, ";
    const head = make("p", "answer-head");
    head.append(
      make("strong", given.right ? "good" : given.right === false ? "bad" : "none", verdict),
      make("span", "note", ` ${card.split === "train" ? "" : `${when}step ${given.step}, `}${given.tokens} tokens${given.truncated ? ", cut off" : ""}`),
    );
    const scores = make("ul", "scores");
    scores.append(...given.scores.map(score));
    box.append(head, make("pre", "", given.text), scores);
    return box;
  }

  function addMessage(box, [role, text]) {
    if (role) box.append(make("p", "note", role));
    box.append(make("pre", "", text));
  }

  function show(card) {
    const article = make("article", "card");
    const right = card.answers.filter((a) => a.right).length;
    const group = card.split === "train" ? `step ${card.answers[0].step}: ${right} of ${card.answers.length} right` : "";
    const title = make("h3", "", card.question);
    title.tabIndex = -1;
    const prompt = make("div", "prompt");
    const earlier = card.prompt.slice(0, -1).filter(([, text]) => text.trim());
    if (earlier.length) {
      const folded = make("details", "");
      folded.append(make("summary", "note", `${earlier.length} earlier message${earlier.length > 1 ? "s" : ""}`));
      for (const message of earlier) addMessage(folded, message);
      prompt.append(folded);
    }
    for (const message of card.prompt.slice(-1)) addMessage(prompt, message);
    const answers = make("div", "answers");
    answers.append(...card.answers.map((given, n) => answer(card, given, n)));
    article.append(title);
    if (group) article.append(make("p", "note", group));
    article.append(prompt);
    if (card.answer !== null) {
      const wanted = make("p", "wanted");
      wanted.append(make("span", "note", "right answer: "), make("span", "", card.answer));
      article.append(wanted);
    }
    article.append(answers);
    return article;
  }

  function grow() {
    const start = list.children.length;
    list.append(...matching.slice(start, start + AT_ONCE).map(show));
    more.hidden = list.children.length >= matching.length;
    return list.children[start];
  }

  function filter() {
    const { run, split, result, text } = Object.fromEntries(new FormData(form));
    const wanted = text.trim().toLowerCase();
    const candidates = cards.filter((card) => card.run === Number(run || 0) && card.split === split);
    matching = candidates.filter((card) => results[result](card) && (!wanted || textOf(card).includes(wanted)));
    const what = split === "train" ? "groups" : "questions";
    count.textContent = `${matching.length.toLocaleString("en")} of ${candidates.length.toLocaleString("en")} ${what}`;
    list.replaceChildren();
    grow();
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => grow()?.querySelector("h3").focus());
  filter();
})();
