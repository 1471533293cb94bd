// What pages do by themselves: times in the reader's zone, themes, commands that follow a form, copies,
// refreshes, plots, live tails. Pages work without it, except for the live tail and plots.
"use strict";

(() => {
  const root = document.documentElement;
  const REFRESH_MS = 5000;

  const remember = (name, value) => {
    document.cookie = `${name}=${value}; Path=/; SameSite=Strict; Max-Age=31536000`;
  };

  // Times

  const two = (number) => String(number).padStart(2, "0");

  const shown = (ms, isUtc, isPrecise) => {
    const at = new Date(ms);
    const get = (name) => at[(isUtc ? "getUTC" : "get") + name]();
    const day = `${get("FullYear")}-${two(get("Month") + 1)}-${two(get("Date"))}`;
    const time = `${two(get("Hours"))}:${two(get("Minutes"))}:${two(get("Seconds"))}`;
    return `${day} ${time}` + (isPrecise ? `.${String(get("Milliseconds")).padStart(3, "0")}` : "");
  };

  const isUtc = () => root.dataset.zone === "utc";

  const showTimes = (within) => {
    for (const one of within.querySelectorAll("time[data-ms]")) {
      one.textContent = shown(Number(one.dataset.ms), isUtc(), "precise" in one.dataset);
      one.title = shown(Number(one.dataset.ms), true, true) + " UTC";
    }
  };

  // Fields hold a time as the page shows times; forms send it in UTC. What is no date, as -10m, stays.

  const timeFields = () => [...document.querySelectorAll("input[data-time]")];

  const momentOf = (text, inUtc = isUtc()) => {
    const found = /^(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d+)?)?))?\s*(Z|[+-]\d\d:?\d\d)?$/.exec(text.trim());
    if (!found) return NaN;
    return Date.parse(`${found[1]}T${found[2] || "00:00"}${found[3] || (inUtc ? "Z" : "")}`);
  };

  const showField = (field, ms) => {
    if (!Number.isNaN(ms)) field.value = shown(ms, isUtc(), ms % 1000 > 0);
    const name = field.closest("label").querySelector(".zone-name");
    if (name) name.textContent = isUtc() ? "UTC" : "local time";
  };

  for (const field of timeFields()) {
    showField(field, momentOf(field.value, true));
    field.form?.addEventListener("submit", () => {
      const ms = momentOf(field.value);
      if (Number.isNaN(ms)) return;
      const before = field.value;
      field.value = new Date(ms).toISOString();
      // Back by the history, the field is as it was.
      setTimeout(() => (field.value = before));
    });
  }

  const zone = document.getElementById("zone");
  zone?.addEventListener("click", () => {
    const moments = timeFields().map((field) => [field, momentOf(field.value)]);
    root.dataset.zone = isUtc() ? "local" : "utc";
    zone.setAttribute("aria-pressed", String(isUtc()));
    remember("mq_zone", root.dataset.zone);
    showTimes(document);
    moments.forEach(([field, ms]) => showField(field, ms));
    plots.forEach((one) => one.draw());
  });

  // Theme

  const theme = document.getElementById("theme");
  theme?.addEventListener("click", () => {
    const order = ["auto", "light", "dark"];
    root.dataset.theme = order[(order.indexOf(root.dataset.theme) + 1) % 3];
    theme.querySelector("span").textContent = root.dataset.theme;
    remember("mq_theme", root.dataset.theme);
    plots.forEach((one) => one.draw());
  });

  // Commands that say what a form would do: `{field=WORD}` is its value or that word; `[--flag {field}]` is
  // left out when the field is empty and repeated for each of its lines, `{field+}` for each of its words.

  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

  const filled = (pattern, form) => {
    const value = (name) => form.elements[name]?.value ?? "";
    return pattern
      .replace(/ \[([^\]]*\{(\w+)(\+?)\}[^\]]*)\]/g, (_, inner, name, isWords) =>
        value(name).split(isWords ? /[\s,]+/ : "\n").map((part) => part.trim()).filter(Boolean)
          .map((part) => ` ${inner.replace(/\S*\{.*\}\S*/, (word) => quoted(word.replace(/\{.*\}/, () => part)))}`).join(""))
      .replace(/[^\s{]*\{(\w+)=([^}]*)\}/g, (word, name, empty) =>
        value(name) ? quoted(word.replace(/\{.*\}/, () => value(name))) : word.replace(/\{.*\}/, () => empty));
  };

  for (const line of document.querySelectorAll("[data-command]")) {
    const form = document.getElementById(line.dataset.of);
    const follow = () => {
      const text = filled(line.dataset[`command_${form.elements.encoding?.value}`] || line.dataset.command, form);
      line.querySelector("code").textContent = text;
      line.querySelector("[data-copy]").dataset.copy = text;
    };
    form?.addEventListener("input", follow);
  }

  // Copies

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = before), 1500);
  });

  // Choosing all rows of a table

  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-pick-all]")) return;
    const table = event.target.closest("table");
    for (const one of table.querySelectorAll("tbody input[type=checkbox]")) one.checked = event.target.checked;
  });

  // Tables that refresh, while somebody looks and is not at work in them: by keyboard, in a field, or
  // with a selection.

  const isBusy = (part) =>
    part.querySelector(":focus-visible, input:checked") ||
    (!getSelection().isCollapsed && part.contains(getSelection().anchorNode));

  setInterval(() => {
    if (document.visibilityState !== "visible" || !window.htmx) return;
    for (const part of document.querySelectorAll("[data-live]")) {
      if (!isBusy(part)) window.htmx.trigger(part, "refresh");
    }
    plots.forEach((one) => one.load());
  }, REFRESH_MS);

  document.addEventListener("htmx:afterSwap", (event) => showTimes(event.target.parentElement || document));

  // Plots

  const plots = [];

  const clock = (tick, neighbour) => shown(tick * 1000, isUtc()).slice(11, Math.abs(tick - neighbour) < 60 ? 19 : 16);

  const units = (value) => {
    if (value == null) return "–";
    const sizes = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
    for (const [size, letter] of sizes) if (Math.abs(value) >= size) return `${+(value / size).toFixed(1)}${letter}`;
    return String(+value.toFixed(value < 10 ? 1 : 0));
  };

  class Plot {
    constructor(element) {
      this.element = element;
      this.load();
      new ResizeObserver(() => this.chart?.setSize({ width: this.width(), height: 190 })).observe(element);
    }

    width() {
      return Math.max(200, this.element.clientWidth - 20);
    }

    async load() {
      const answer = await fetch(this.element.dataset.plot, { headers: { accept: "application/json" } }).catch(() => null);
      if (!answer || !answer.ok) return;
      this.data = await answer.json();
      if (this.chart && this.labels === this.data.series.map((one) => one.label).join()) {
        this.chart.setData([this.data.times, ...this.data.series.map((one) => one.values)]);
      } else {
        this.draw();
      }
    }

    draw() {
      if (!this.data || !window.uPlot) return;
      const style = getComputedStyle(root);
      const colour = (name) => style.getPropertyValue(name).trim();
      const strokes = [colour("--accent"), colour("--good"), colour("--warn"), colour("--bad")];
      const scales = [...new Set(this.data.series.map((one) => one.unit))];
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      this.chart?.destroy();
      this.labels = this.data.series.map((one) => one.label).join();
      this.chart = new window.uPlot(
        {
          width: this.width(),
          height: 190,
          cursor: { y: false },
          scales: Object.fromEntries(scales.map((unit) => [unit, { range: (_, low, high) => [0, Math.max(1, high * 1.1)] }])),
          axes: [
            { ...axis, space: 80, values: (_, ticks) => ticks.map((tick, at) => clock(tick, ticks[at ? at - 1 : 1])) },
            ...scales.slice(0, 2).map((unit, at) => ({
              ...axis, scale: unit, side: at ? 1 : 3, size: 62,
              grid: { ...axis.grid, show: !at },
              values: (_, ticks) => ticks.map((tick) => units(tick) + (unit === "/s" ? "" : ` ${unit}`)),
            })),
          ],
          series: [
            { label: "time", value: (_, seconds) => (seconds == null ? "–" : shown(seconds * 1000, isUtc()).slice(11, 19)) },
            ...this.data.series.map((one, at) => ({
              label: one.label, scale: one.unit, stroke: strokes[at % 4], width: 1.6, spanGaps: false,
              // Lines of two scales often have one shape: the first shows through the second.
              dash: at && scales.length > 1 ? [6, 4] : [],
              points: { show: this.data.times.length < 3 },
              value: (_, value) => (value == null ? "–" : `${units(value)} ${one.unit}`),
            })),
          ],
        },
        [this.data.times, ...this.data.series.map((one) => one.values)],
        this.element,
      );
    }
  }

  // Live tails

  const ROWS_MAX = 500;
  const RETRY_MS = 2000;

  class Tail {
    constructor(section) {
      this.url = section.dataset.tail;
      this.rows = section.querySelector("#tail-rows");
      this.state = section.querySelector("#tail-state");
      this.pause = section.querySelector("#tail-pause");
      this.last = "";
      this.count = this.skipped = 0;
      this.isPaused = false;
      this.pause.addEventListener("click", () => {
        this.isPaused = !this.isPaused;
        this.pause.textContent = this.isPaused ? "Resume" : "Pause";
        this.pause.setAttribute("aria-pressed", String(this.isPaused));
        this.follow();
      });
      section.querySelector("#tail-clear").addEventListener("click", () => {
        this.rows.replaceChildren();
        this.count = this.skipped = 0;
        this.tell();
      });
      // A browser has six connections to a server: tabs that nobody sees hold none.
      document.addEventListener("visibilitychange", () => this.follow());
      this.follow();
    }

    follow() {
      const isWanted = !this.isPaused && document.visibilityState === "visible";
      if (!isWanted) {
        this.source?.close();
        this.source = null;
        this.say("calm", "paused");
      } else if (!this.source) {
        const place = this.last ? `${this.url.includes("?") ? "&" : "?"}after=${encodeURIComponent(this.last)}` : "";
        this.source = new EventSource(this.url + place);
        // Live from its first event on, which says where it begins: not when it is open.
        this.source.addEventListener("error", () => this.lost());
        this.source.addEventListener("rows", (event) => this.take(event));
        this.source.addEventListener("failed", (event) => {
          this.source.close();
          this.say("bad", JSON.parse(event.data).text);
        });
      }
    }

    // Browsers connect again by themselves, except after an answer that is no stream: that of a proxy
    // while the console starts, or of a console that wants a login.
    async lost() {
      this.say("warn", "connecting again");
      if (this.source?.readyState !== EventSource.CLOSED) return;
      this.source = null;
      const answer = await fetch("/series.json", { headers: { accept: "application/json" } }).catch(() => null);
      if (answer?.status === 401) location.reload();
      else setTimeout(() => this.follow(), RETRY_MS);
    }

    take(event) {
      const news = JSON.parse(event.data);
      if (event.lastEventId) this.last = event.lastEventId;
      this.say(news.trouble ? "warn" : "good", news.trouble ? `waiting: ${news.trouble}` : "live");
      const made = document.createElement("template");
      made.innerHTML = news.rows;
      showTimes(made.content);
      this.rows.prepend(made.content);
      while (this.rows.rows.length > ROWS_MAX) this.rows.rows[this.rows.rows.length - 1].remove();
      this.count += news.count;
      this.skipped += news.skipped;
      this.tell();
    }

    tell() {
      document.getElementById("tail-count").textContent = `${this.count.toLocaleString("en")} messages`;
      document.getElementById("tail-skipped").textContent = this.skipped
        ? `${this.skipped.toLocaleString("en")} skipped: they come faster than a page can show` : "";
      document.getElementById("tail-empty").hidden = this.rows.rows.length > 0;
    }

    say(level, word) {
      this.state.className = `state ${level}`;
      this.state.textContent = word;
    }
  }

  for (const section of document.querySelectorAll("[data-tail]")) new Tail(section);

  // Fields that belong to a choice

  const place = document.getElementById("place");
  const showFields = () => {
    for (const one of document.querySelectorAll("[data-place]")) one.hidden = one.dataset.place !== place.value;
  };
  if (place) {
    place.addEventListener("change", showFields);
    showFields();
  }

  // Where the menu is a bar, the place of the reader is in view.
  document.querySelector(".menu a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  document.querySelector(".sections a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  showTimes(document);
  for (const element of document.querySelectorAll("[data-plot]")) plots.push(new Plot(element));
})();
