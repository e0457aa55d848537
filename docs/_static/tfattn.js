// A viewer in a frame tells its height: it is shown whole.
addEventListener("message", ({ data, source }) => {
  for (const frame of document.querySelectorAll("iframe.viewer")) {
    if (frame.contentWindow === source && data.viewerHeight > 0) {
      frame.style.height = `${Math.ceil(data.viewerHeight) + 2}px`;
    }
  }
});
