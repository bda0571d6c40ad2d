// The calculators of calculators.md. The formulas are those of hooks/calculators.py; a test holds both to the same
// vectors. Nothing is sent anywhere.
(function () {
  "use strict";

  const MIB = 2 ** 20, FIRST_BUCKET = 1 * MIB, BUCKET = 25 * MIB;

  const formulas = {
    memory({ parameters, state, temporaries, bytes_each, fixed, per_sample, batch, accumulates }) {
      const weights = parameters * bytes_each, stays = weights * (1 + state);
      const activations = fixed + per_sample * batch;
      const backward = stays + activations + (accumulates ? weights : 0);
      const step = stays + weights * (1 + temporaries);
      return {
        weights, gradients: weights, state: weights * state, activations, backward, step,
        peak: Math.max(backward, step),
      };
    },

    pinned({ smallest, largest, workers, prefetch }) {
      const batches = workers ? workers * prefetch + 1 : 2;
      const block = powerOfTwo(largest);
      let blocks = 0;
      for (let size = powerOfTwo(smallest); size <= block; size *= 2) blocks += size;
      return { batches, block, one_size: batches * block, worst: batches * blocks };
    },

    ddp({ gradient_bytes, ranks, backwards, compute_s, latency_s, bytes_per_s }) {
      const buckets = 1 + Math.max(0, Math.ceil((gradient_bytes - FIRST_BUCKET) / BUCKET));
      const messages = backwards * buckets;
      const sent = (backwards * gradient_bytes * 2 * (ranks - 1)) / ranks;
      const communication_s = messages * latency_s * Math.ceil(Math.log2(ranks)) + sent / bytes_per_s;
      return {
        messages, sent, communication_s, at_best_s: Math.max(compute_s, communication_s),
        at_worst_s: compute_s + communication_s, speed_up_at_worst: (ranks * compute_s) / (compute_s + communication_s),
      };
    },
  };

  function powerOfTwo(size) {
    let block = 1;
    while (block < size) block *= 2;
    return block;
  }

  if (typeof module !== "undefined") {
    module.exports = formulas;
    return;
  }
  window.breakfixFormulas = formulas;

  // ------------------------------------------------------------------------------------------------------ the page

  const recorded = window.breakfixRecorded;
  const rounded = (x) => Number(x.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
  const bytes = (x) => (x >= 2 ** 30 ? `${rounded(x / 2 ** 30)} GiB` : `${rounded(x / MIB)} MiB`);
  const seconds = (x) => (x >= 1 ? `${rounded(x)} s` : `${rounded(1000 * x)} ms`);

  function field(form, name) {
    return form.elements.namedItem(name);
  }

  function numbers(form, ...names) {
    return names.map((name) => field(form, name).valueAsNumber);
  }

  function fill(select, entries) {
    entries.forEach((text, i) => select.add(new Option(text, i)));
  }

  function line(name, value) {
    const row = document.createElement("tr");
    row.append(document.createElement("th"), document.createElement("td"));
    row.cells[0].scope = "row";
    row.cells[0].textContent = name;
    row.cells[1].textContent = value;
    return row;
  }

  function answer(form, headline, rows) {
    const table = document.createElement("table"), strong = document.createElement("strong");
    strong.textContent = headline;
    table.append(...rows.map(([name, value]) => line(name, value)));
    form.querySelector(".answer").replaceChildren("Modelled: ", strong, table);
  }

  const pages = {
    memory(form) {
      const optimizer = Object.values(recorded.optimizers)[field(form, "optimizer").value];
      const [millions, fixed, per_sample, batch] = numbers(form, "parameters", "fixed", "per_sample", "batch");
      const found = formulas.memory({
        ...optimizer, parameters: millions * 1e6, bytes_each: field(form, "precision").value === "bfloat16" ? 2 : 4,
        fixed: fixed * MIB, per_sample: per_sample * MIB, batch, accumulates: field(form, "accumulates").checked,
      });
      const decides = found.backward >= found.step ? "forward and backward decide" : "the optimizer's step decides";
      answer(form, `${bytes(found.peak)} at the peak; ${decides}`, [
        ["parameters", bytes(found.weights)], ["gradients", bytes(found.gradients)],
        ["optimizer state", bytes(found.state)], ["activations", bytes(found.activations)],
        ["peak of forward and backward", bytes(found.backward)], ["peak of the optimizer's step", bytes(found.step)],
      ]);
    },

    pinned(form) {
      const [smallest, largest, workers, prefetch] = numbers(form, "smallest", "largest", "workers", "prefetch");
      const sizes = [smallest, largest].map((size) => Math.max(1, Math.round(size * MIB)));
      const found = formulas.pinned({ smallest: Math.min(...sizes), largest: Math.max(...sizes), workers, prefetch });
      answer(form, `${bytes(found.worst)} of host memory at worst`, [
        ["batches pinned at once", found.batches], ["block of the largest batch", bytes(found.block)],
        ["if all batches were as the largest", bytes(found.one_size)],
        ["if sizes vary, in the long run", bytes(found.worst)],
      ]);
    },

    ddp(form) {
      const link = recorded.links[field(form, "link").value];
      const [millions, ranks, backwards, compute] = numbers(form, "parameters", "ranks", "backwards", "compute");
      const found = formulas.ddp({
        gradient_bytes: millions * 1e6 * Number(field(form, "wire").value), ranks, backwards, compute_s: compute / 1000,
        latency_s: link.latency_s, bytes_per_s: link.bytes_per_s,
      });
      answer(form, `${seconds(found.at_best_s)} to ${seconds(found.at_worst_s)} for a step`, [
        ["messages", found.messages], ["sent by each rank", bytes(found.sent)],
        ["time of the messages", seconds(found.communication_s)],
        ["speed-up over one rank, nothing hidden", `${rounded(found.speed_up_at_worst)} of ${ranks}`],
      ]);
    },
  };

  function takeModel(form) {
    const model = recorded.models[field(form, "model").value];
    if (!model) return;
    const found = model.activations[field(form, "precision").value];
    field(form, "parameters").value = (model.parameters / 1e6).toFixed(2);
    field(form, "fixed").value = (found.fixed / MIB).toFixed(1);
    field(form, "per_sample").value = (found.per_sample / MIB).toFixed(2);
  }

  function compute(form) {
    if (form.checkValidity()) pages[form.dataset.formula](form);
    else form.querySelector(".answer").textContent = "Some of the numbers are missing or out of range.";
  }

  function prepare(form) {
    for (const select of form.querySelectorAll("select[data-from]")) {
      const from = recorded[select.dataset.from];
      const names = Array.isArray(from) ? from.map((f) => (f.input ? `${f.name}, ${f.input}` : f.name)) : Object.keys(from);
      fill(select, names);
      if (select.dataset.from === "models") select.add(new Option("my own", "own"));
      select.value = String(select.dataset.first || 0);
    }
    const model = field(form, "model");
    if (model) takeModel(form);
    form.addEventListener("input", (event) => {
      if (model && (event.target === model || event.target.name === "precision")) takeModel(form);
      else if (model && ["parameters", "fixed", "per_sample"].includes(event.target.name)) model.value = "own";
      compute(form);
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
    compute(form);
  }

  document.querySelectorAll("form.calculator").forEach(prepare);
})();
