//! The status page for people, as curl, Python's parser of HTML, lynx and w3m see it.

use std::io::Write;
use std::process::{Command, Stdio};

use testing::tools::{curl_text, program, run};
use testing::{Scripted, Server, eventually, secs};

/// Prints each tag that is not closed, each attribute that could load or run something, and the text of each cell.
const PARSER: &str = r#"
import base64, hashlib, html.parser, sys
void = {'meta', 'br', 'link', 'img', 'input'}
class Parser(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.title, self.style, self.cell = [], '', '', None
    def handle_starttag(self, tag, attributes):
        if tag == 'br':
            if self.cell is not None: self.cell += '\n'
            return
        if tag not in void: self.open.append(tag)
        if tag in ('td', 'th'): self.cell = ''
        print('tag', tag)
        for name, value in attributes:
            if name in ('src', 'href', 'style', 'action', 'data') or name.startswith('on'): print('BAD', tag, name, value)
            if tag == 'meta' and name == 'http-equiv': print('meta', value, dict(attributes).get('content'))
    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag: print('BAD end of', tag)
        if tag in ('td', 'th'):
            print('cell', repr(self.cell)); self.cell = None
    def handle_data(self, data):
        if self.open and self.open[-1] == 'title': print('title', data)
        if self.open and self.open[-1] == 'h2': print('h2', data)
        if self.open and self.open[-1] == 'style': self.style += data
        if self.cell is not None: self.cell += data
parser = Parser()
parser.feed(sys.stdin.read()); parser.close()
for tag in parser.open: print('BAD open', tag)
print('style', 'sha256-' + base64.b64encode(hashlib.sha256(parser.style.encode()).digest()).decode())
"#;

fn parsed(page: &str) -> String {
    let mut child = Command::new(program("python3"))
        .args(["-c", PARSER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_page_is_sound_html_without_script_and_has_what_status_has() {
    let backend = Scripted::answering("x");
    let port = testing::port::free();
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [listener.other]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"dead\"\n\
         [pool.app]\nbackends = [\"{}\", \"unix:/run/<i>&'.sock\"]\n\
         health = {{ http = \"/\", interval = \"2s\", timeout = \"2s\", fall = 3 }}\n\
         [pool.dead]\nbackends = [\"127.0.0.1:{port}\"]\nhealth = {{ tcp = true, interval = \"100ms\", fall = 1 }}\n",
        backend.address
    ));
    let url = format!("http://{}", server.admin());
    eventually("both backends are down", secs(20), || {
        let status = server.ctl_json(&["status"]);
        let down = |pool: &str, at: usize| {
            let pools = status["pools"].as_array().unwrap();
            pools.iter().any(|it| it["name"] == pool && it["backends"][at]["state"] == "down")
        };
        (down("app", 1) && down("dead", 0)).then_some(())
    });
    let page = curl_text(&[&format!("{url}/status.html")]);
    let seen = parsed(&page);
    assert!(!seen.contains("BAD"), "{seen}\n{page}");
    for tag in ["script", "link", "img", "iframe", "object", "i", "form"] {
        assert!(!seen.contains(&format!("tag {tag}\n")), "{tag}: {page}");
    }
    assert!(seen.contains("title (1) Penstock\n") && seen.contains("meta refresh 5\n"), "{seen}");
    assert!(seen.contains("cell \"unix:/run/<i>&'.sock\"\n"), "{seen}");
    // What does not work comes first: of pools, and of the backends of one.
    let at = |part: &str| seen.find(part).unwrap_or_else(|| panic!("{part}: {seen}"));
    assert!(at("h2 Pool dead ") < at("h2 Pool app "), "{seen}");
    assert!(
        at("h2 Pool app ") < at("cell \"unix:")
            && at("cell \"unix:") < at(&format!("cell '{}'", backend.address))
    );
    assert!(at("h2 Pool app ") < at("h2 Listeners") && at("h2 Listeners") < at("h2 Last events"));
    assert!(seen.contains("probe fail: "), "{seen}");

    // The policy lets a browser use the style of the page, and nothing else.
    let head = curl_text(&["-D", "-", "-o", "/dev/null", &format!("{url}/status.html")]);
    let policy = head.lines().find(|line| line.starts_with("content-security-policy: ")).unwrap();
    let style = seen.lines().find_map(|line| line.strip_prefix("style ")).unwrap();
    assert!(policy.contains(&format!("default-src 'none'; style-src '{style}';")), "{policy}\n{style}");
    assert!(head.contains("content-type: text/html; charset=utf-8") && head.contains("nosniff"), "{head}");

    // A browser gets it at `/`, a program does not.
    let browser = "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8";
    assert!(curl_text(&["-H", browser, &url]).starts_with("<!DOCTYPE html>"));
    assert!(curl_text(&[&url]).starts_with("not found; there are "));

    for (reader, arguments) in
        [("lynx", vec!["-dump", "-nolist", "-width=120"]), ("w3m", vec!["-dump", "-cols", "120"])]
    {
        let address = format!("{url}/status.html");
        let arguments: Vec<_> = arguments.into_iter().chain([address.as_str()]).collect();
        let output = run(reader, &arguments, secs(30));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("Pool dead") && text.contains("unix:/run/<i>&"),
            "{reader}: {output:?}"
        );
    }
}
