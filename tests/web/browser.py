"""browser.py - opens a page in headless Chromium, waits until it says so, and tells what is there.

  browser.py PAGE.html[#fragment] --until EXPRESSION [--print EXPRESSION]... [--picture FILE.png]
             [--dark] [--width N] [--seconds N]

Speaks the DevTools protocol over two pipes, so it needs nothing but Python and Chromium. Ends badly
where the expression is not true in time, or where the page wrote anything to its console.
"""
import argparse, base64, json, os, pathlib, select, shutil, subprocess, sys, tempfile, time


class Page:
    def __init__(self, program, folder):
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()

        def hand_over():  # the protocol's descriptors are 3 and 4
            spare = [os.dup2(to_read, 98), os.dup2(to_write, 99)]
            os.dup2(spare[0], 3), os.dup2(spare[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--remote-debugging-pipe", "--user-data-dir=" + folder],
            preexec_fn=hand_over, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read), os.close(to_write)
        self.count, self.session, self.rest, self.said = 0, None, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(domain + ".enable")

    def next_message(self, seconds=60):
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            if not select.select([self.read_end], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit("browser.py: no answer from Chromium")
            block = os.read(self.read_end, 1 << 16)
            if not block:
                sys.exit("browser.py: Chromium ended")
            self.rest += block
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("id") == self.count:
                if "error" in answer:
                    sys.exit(f"browser.py: {method}: {answer['error']['message']}")
                return answer["result"]
            if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown",
                                        "Log.entryAdded"):
                self.said.append(json.dumps(answer["params"])[:500])

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            return None  # the page is not there yet, or lacks it
        return result["result"].get("value")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page")
    parser.add_argument("--until", required=True)
    parser.add_argument("--print", action="append", default=[])
    parser.add_argument("--picture")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=120)
    wanted = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        sys.exit("browser.py: chromium is not installed")
    path, mark, fragment = wanted.page.partition("#")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Page(program, folder)
        try:
            theme = [{"name": "prefers-color-scheme", "value": "dark" if wanted.dark else "light"}]
            page.call("Emulation.setEmulatedMedia", features=theme)
            page.call("Emulation.setDeviceMetricsOverride", width=wanted.width, height=1400,
                      deviceScaleFactor=1, mobile=False)
            page.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri() + mark + fragment)
            end = time.monotonic() + wanted.seconds
            while not page.value(wanted.until):
                if time.monotonic() > end:
                    sys.exit(f"browser.py: not in {wanted.seconds:.0f} s: {wanted.until}\n" +
                             "\n".join(page.said))
                time.sleep(0.1)
            for expression in wanted.print:
                print(page.value(expression))
            if wanted.picture:
                data = page.call("Page.captureScreenshot", format="png")["data"]
                pathlib.Path(wanted.picture).write_bytes(base64.b64decode(data))
        finally:
            page.process.kill()
            page.process.wait()
        if page.said:
            sys.exit("browser.py: the console is not empty\n" + "\n".join(page.said))


main()
