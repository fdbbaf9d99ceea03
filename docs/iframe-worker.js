/* Search in pages that were opened from disk. Browsers start no Worker for file://, so its script runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.ready = new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(inner);
        script.onerror = reject;
        inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then((inner) => {
        const event = new inner.MessageEvent("message", { data });
        inner.dispatchEvent(event);
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
