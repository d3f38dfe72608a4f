// Search from the file system: browsers start no Worker there, so a hidden frame runs its script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data =>
        setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })))
      this.scope.importScripts = async (...names) => {
        for (const name of names) await this.run(name)
      }
      this.ready = this.run(address)
    }

    run(address) {
      return new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script")
        Object.assign(script, { src: address, onload: resolve, onerror: reject })
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
