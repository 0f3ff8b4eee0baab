// A browser starts no worker for a page on the disk. There a hidden frame runs the worker's script in its place,
// so that the search works without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      this.scope.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => this.run(next)), Promise.resolve())
      this.ready = this.run(url)
    }

    run(url) {
      return new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script")
        script.onload = resolve
        script.onerror = reject
        script.src = new URL(url, location.href)
        this.scope.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.scope.frameElement.remove()
    }
  }
}
