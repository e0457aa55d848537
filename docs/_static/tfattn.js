// A viewer in a frame tells its height: it is shown whole.
addEventListener("message", ({ data, source }) => {
  for (const frame of document.querySelectorAll("iframe.viewer")) {
    if (frame.contentWindow === source && data.viewerHeight > 0) {
      frame.style.height = `${Math.ceil(data.viewerHeight) + 2}px`;
    }
  }
});

// In narrow columns a name breaks after a dot or an underscore, or before a capital letter.
addEventListener("DOMContentLoaded", () => {
  for (const name of document.querySelectorAll(":is(td, th, .bd-sidebar-secondary) code .pre")) {
    name.innerHTML = name.innerHTML.replace(/\b[_.(=/](?=\w)|_(?=\w)|[a-z](?=[A-Z])/g, "$&<wbr>");
  }
});
