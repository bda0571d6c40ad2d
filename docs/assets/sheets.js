// Tables that can be filtered and sorted. Without JavaScript they are tables.
//
// <div class="sheet" data-filters="track:2:=,minutes:4:<=,needs:5:each,section:0:^[AB]-[^-]+" data-noun="labs" data-sort>
// A filter is a name, a column, and how to compare: "=" the whole cell, "<=" at most, "each" one of several that are
// separated by commas, or a regular expression for the part that counts.
(function () {
  "use strict";

  const text = (row, column) => row.cells[column].textContent.trim();

  function values(row, filter) {
    const cell = text(row, filter.column);
    if (filter.how === "each") return cell.split(", ");
    if (filter.how === "=" || filter.how === "<=") return [cell];
    return cell.match(new RegExp(filter.how)) || [];
  }

  function fits(row, filter) {
    const wanted = filter.control.value;
    if (!wanted) return true;
    if (filter.how === "<=") return Number(text(row, filter.column)) <= Number(wanted);
    return values(row, filter).includes(wanted);
  }

  function labelled(name, control) {
    const label = document.createElement("label");
    label.append(name + " ", control);
    return label;
  }

  function chooser(filter, rows) {
    const select = document.createElement("select");
    const found = [...new Set(rows.flatMap((row) => values(row, filter)))];
    if (found.every((value) => !isNaN(value))) found.sort((a, b) => a - b);
    select.add(new Option("all", ""));
    for (const value of found) select.add(new Option(filter.how === "<=" ? `at most ${value}` : value, value));
    return select;
  }

  function sortable(table, rows) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const compare = (a, b) => text(a, column).localeCompare(text(b, column), "en", { numeric: true });
        table.tBodies[0].append(...[...rows].sort((a, b) => (down ? compare(b, a) : compare(a, b))));
      });
    });
  }

  function prepare(sheet) {
    const table = sheet.querySelector("table"), rows = [...table.tBodies[0].rows];
    const bar = document.createElement("div"), count = document.createElement("output");
    bar.className = "sheet-controls";
    const filters = sheet.dataset.filters.split(",").map((part) => {
      const [name, column, ...how] = part.split(":");
      const filter = { name, column: Number(column), how: how.join(":") };
      filter.control = chooser(filter, rows);
      return filter;
    });
    const search = document.createElement("input");
    search.type = "search";
    const words = rows.map((row) => row.textContent.toLowerCase());

    function update() {
      const wanted = search.value.toLowerCase().split(/\s+/);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !(wanted.every((word) => words[i].includes(word)) && filters.every((f) => fits(row, f)));
        shown += !row.hidden;
      });
      count.textContent = `${shown} of ${rows.length} ${sheet.dataset.noun}`;
    }

    bar.append(labelled("words", search), ...filters.map((f) => labelled(f.name, f.control)), count);
    bar.addEventListener("input", update);
    sheet.prepend(bar);
    if ("sort" in sheet.dataset) sortable(table, rows);
    update();
    // A link to a row must find it, whatever is filtered.
    addEventListener("hashchange", () => {
      const row = location.hash && document.getElementById(location.hash.slice(1))?.closest("tr");
      if (row && row.hidden) {
        search.value = "";
        filters.forEach((f) => { f.control.value = ""; });
        update();
        row.scrollIntoView();
      }
    });
  }

  document.querySelectorAll(".sheet").forEach(prepare);
})();
