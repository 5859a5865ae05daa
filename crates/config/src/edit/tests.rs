use super::*;

const FILE: &str = r#"# The front door of example.com.

[control]
socket = "/run/penstock/control.sock"

# Everything arrives here.
[listener.web]
bind = ":80"       # behind the firewall
protocol = "http"
pool = "app"
timeouts = { header = "5s" }

[[listener.web.route]]
path = "/api/"     # the first route
pool = "api"

[pool.app]
balance = "round-robin"   # until they are equal
backends = [
  "10.0.0.11:8000",  # rack 1
  # the new one
  "10.0.0.12:8000",  # rack 2
]

[pool.api]
backends = ["10.0.0.21:8000", { address = "unix:/run/api.sock", weight = 2 }]

# The end.
"#;

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

fn set(text: &str, at: &str, value: &str) -> String {
    apply(text, &Edit::Set { path: path(at), value: value.to_owned() }).unwrap()
}

fn add(text: &str, at: &str, value: &str) -> String {
    apply(text, &Edit::Add { path: path(at), value: value.to_owned() }).unwrap()
}

fn remove(text: &str, at: &str) -> String {
    apply(text, &Edit::Remove { path: path(at) }).unwrap()
}

fn remove_entry(text: &str, at: &str, value: &str) -> String {
    apply(text, &Edit::RemoveEntry { path: path(at), value: value.to_owned() }).unwrap()
}

/// Lines that a change removed and added.
#[track_caller]
fn changed(new: &str, removed: &[&str], added: &[&str]) {
    let hunks = crate::difference::Difference::between(FILE, new).hunks;
    // An empty line may count as the one before or the one after.
    let lines = |lines: Vec<String>| lines.concat().trim_matches('\n').to_owned();
    let is_removed = lines(hunks.iter().flat_map(|hunk| hunk.removed.clone()).collect());
    let is_added = lines(hunks.iter().flat_map(|hunk| hunk.added.clone()).collect());
    let all = |lines: &[&str]| lines.join("\n").trim_matches('\n').to_owned();
    assert_eq!((is_removed, is_added), (all(removed), all(added)), "{new}");
}

#[test]
fn a_value_is_set_and_its_comment_stays() {
    changed(
        &set(FILE, "pool.app.balance", "least-connections"),
        &["balance = \"round-robin\"   # until they are equal"],
        &["balance = \"least-connections\"   # until they are equal"],
    );
    changed(
        &set(FILE, "listener.web.timeouts.header", "9s"),
        &["timeouts = { header = \"5s\" }"],
        &["timeouts = { header = \"9s\" }"],
    );
    changed(
        &set(FILE, "listener.web.route.1.path", "/v2/"),
        &["path = \"/api/\"     # the first route"],
        &["path = \"/v2/\"     # the first route"],
    );
    changed(
        &set(FILE, "pool.api.backends.unix:/run/api.sock.weight", "5"),
        &["backends = [\"10.0.0.21:8000\", { address = \"unix:/run/api.sock\", weight = 2 }]"],
        &["backends = [\"10.0.0.21:8000\", { address = \"unix:/run/api.sock\", weight = 5 }]"],
    );
}

#[test]
fn a_key_is_made_where_it_belongs() {
    changed(&set(FILE, "pool.app.max-connections", "9"), &[], &["max-connections = 9"]);
    changed(&set(FILE, "pool.app.timeouts.connect", "2s"), &[], &["timeouts.connect = \"2s\""]);
    changed(&set(FILE, "access-log.target", "off"), &[], &["", "[access-log]", "target = \"off\""]);
    changed(
        &set(FILE, "listener.web.timeouts.body", "9s"),
        &["timeouts = { header = \"5s\" }"],
        &["timeouts = { header = \"5s\", body = \"9s\" }"],
    );
    changed(
        &set(FILE, "pool.app.backends.10.0.0.12:8000.weight", "3"),
        &["  \"10.0.0.12:8000\",  # rack 2"],
        &["  { address = \"10.0.0.12:8000\", weight = 3 },  # rack 2"],
    );
    changed(
        &add(FILE, "pool.new", "{ backends = [\"10.0.0.31:80\"], balance = \"hash\" }"),
        &[],
        &["", "[pool.new]", "backends = [\"10.0.0.31:80\"]", "balance = \"hash\""],
    );
    changed(
        &add(FILE, "listener.web.route", "{ host = \"x\", pool = \"app\" }"),
        &[],
        &["", "[[listener.web.route]]", "host = \"x\"", "pool = \"app\""],
    );
}

#[test]
fn entries_are_added_and_removed_with_their_comments() {
    changed(&add(FILE, "pool.app.backends", "10.0.0.13:8000"), &[], &["  \"10.0.0.13:8000\","]);
    changed(
        &add(FILE, "pool.api.backends", "10.0.0.13:8000"),
        &["backends = [\"10.0.0.21:8000\", { address = \"unix:/run/api.sock\", weight = 2 }]"],
        &[
            "backends = [\"10.0.0.21:8000\", { address = \"unix:/run/api.sock\", weight = 2 }, \"10.0.0.13:8000\"]",
        ],
    );
    changed(
        &add(FILE, "listener.web.bind", ":81"),
        &["bind = \":80\"       # behind the firewall"],
        &["bind = [\":80\", \":81\"]       # behind the firewall"],
    );
    changed(
        &remove_entry(FILE, "pool.app.backends", "10.0.0.12:8000"),
        &["  # the new one", "  \"10.0.0.12:8000\",  # rack 2"],
        &[],
    );
    changed(
        &remove_entry(FILE, "pool.app.backends", "10.0.0.11:8000"),
        &["  \"10.0.0.11:8000\",  # rack 1"],
        &[],
    );
    changed(
        &remove_entry(FILE, "pool.api.backends", "unix:/run/api.sock"),
        &["backends = [\"10.0.0.21:8000\", { address = \"unix:/run/api.sock\", weight = 2 }]"],
        &["backends = [\"10.0.0.21:8000\"]"],
    );
    changed(
        &remove(FILE, "pool.api.backends.1"),
        &["backends = [\"10.0.0.21:8000\", { address = \"unix:/run/api.sock\", weight = 2 }]"],
        &["backends = [{ address = \"unix:/run/api.sock\", weight = 2 }]"],
    );
    changed(
        &remove(FILE, "pool.api.backends.2.weight"),
        &["backends = [\"10.0.0.21:8000\", { address = \"unix:/run/api.sock\", weight = 2 }]"],
        &["backends = [\"10.0.0.21:8000\", { address = \"unix:/run/api.sock\" }]"],
    );
}

#[test]
fn an_entry_is_put_before_the_one_that_the_path_names() {
    let lists = "[acl.one]\nentries = [\"permit 10.0.0.0/8\", \"permit ::1\"]  # all\n\
                 [acl.two]\nentries = [  # two\n  # the office\n  \"permit 10.0.0.0/8\",  # all of it\n  \"permit ::1\"\n]\n";
    let deny = "deny 10.7.0.0/16";
    let of = |at: &str| add(lists, at, deny);
    assert_eq!(of("acl.one.entries.1"), lists.replacen("[\"permit", "[\"deny 10.7.0.0/16\", \"permit", 1));
    assert_eq!(of("acl.one.entries.2"), lists.replacen("/8\", ", "/8\", \"deny 10.7.0.0/16\", ", 1));
    assert_eq!(of("acl.one.entries.\"permit ::1\""), of("acl.one.entries.2"));
    assert_eq!(of("acl.two.entries.1"), lists.replacen("  # the", "  \"deny 10.7.0.0/16\",\n  # the", 1));
    assert_eq!(
        of("acl.two.entries.2"),
        lists.replacen("all of it\n", "all of it\n  \"deny 10.7.0.0/16\",\n", 1)
    );
    for at in ["acl.one.entries.1", "acl.one.entries.2", "acl.two.entries.1", "acl.two.entries.2"] {
        assert_eq!(remove(&of(at), at), lists, "{at}");
    }
    let one = add(FILE, "pool.app.backends.10.0.0.12:8000", "{ address = \"10.0.0.13:8000\", weight = 2 }");
    changed(&one, &[], &["  { address = \"10.0.0.13:8000\", weight = 2 },"]);
    assert!(one.contains("rack 1\n  { address"), "{one}");
}

#[test]
fn what_is_removed_takes_its_comments_along_and_leaves_those_of_the_file() {
    changed(
        &remove(FILE, "listener.web"),
        &[
            "",
            "# Everything arrives here.",
            "[listener.web]",
            "bind = \":80\"       # behind the firewall",
            "protocol = \"http\"",
            "pool = \"app\"",
            "timeouts = { header = \"5s\" }",
            "",
            "[[listener.web.route]]",
            "path = \"/api/\"     # the first route",
            "pool = \"api\"",
        ],
        &[],
    );
    changed(
        &remove(FILE, "listener.web.route.1"),
        &["", "[[listener.web.route]]", "path = \"/api/\"     # the first route", "pool = \"api\""],
        &[],
    );
    let without = remove(FILE, "control");
    assert!(
        without.starts_with("# The front door of example.com.\n\n# Everything arrives here.\n[listener.web]"),
        "{without}"
    );
    assert!(remove(FILE, "pool.api").ends_with("]\n\n# The end.\n"));
}

#[test]
fn undoing_a_change_by_its_contrary_gives_the_same_bytes() {
    let there = add(FILE, "pool.app.backends", "10.0.0.13:8000");
    assert_eq!(remove_entry(&there, "pool.app.backends", "10.0.0.13:8000"), FILE);
    let there = add(FILE, "pool.new", "{ backends = [\"10.0.0.31:80\"] }");
    assert_eq!(remove(&there, "pool.new"), FILE);
    let there = set(FILE, "pool.app.timeouts.connect", "2s");
    assert_eq!(remove(&there, "pool.app.timeouts.connect"), FILE);
    let there = add(FILE, "listener.web.route", "{ host = \"x\", pool = \"app\" }");
    assert_eq!(remove(&there, "listener.web.route.2"), FILE);
}

#[test]
fn ends_of_lines_and_the_end_of_the_file_stay() {
    let windows = FILE.replace('\n', "\r\n");
    assert_eq!(
        set(&windows, "pool.app.balance", "hash"),
        set(FILE, "pool.app.balance", "hash").replace('\n', "\r\n")
    );
    assert_eq!(
        add(&windows, "pool.app.backends", "10.0.0.13:8000"),
        add(FILE, "pool.app.backends", "10.0.0.13:8000").replace('\n', "\r\n")
    );
    let short = "\u{feff}[pool.app]\nbackends = ['a:1']\nbalance = 'hash'";
    assert_eq!(set(short, "pool.app.backends", "['b:1']"), short.replace("'a:1'", "'b:1'"));
    let longer = set(short, "access-log.target", "off");
    assert_eq!(longer, format!("{short}\n\n[access-log]\ntarget = \"off\"\n"));
}

#[test]
fn a_list_with_a_default_begins_with_it() {
    let text = "[listener.web]\nbind = ':80'\n";
    assert_eq!(
        add(text, "listener.web.route", "{ pool = 'a' }"),
        format!("{text}\n[[listener.web.route]]\npool = 'a'\n")
    );
    assert_eq!(add("", "pool.a.backends", "h:1"), "[pool.a]\nbackends = [\"h:1\"]\n");
}

#[test]
fn what_cannot_be_changed_is_said() {
    let add = |at: &str, value: &str| apply(FILE, &Edit::Add { path: path(at), value: value.to_owned() });
    let set = |at: &str, value: &str| apply(FILE, &Edit::Set { path: path(at), value: value.to_owned() });
    let remove = |at: &str| apply(FILE, &Edit::Remove { path: path(at) });
    let entry =
        |at: &str, value: &str| apply(FILE, &Edit::RemoveEntry { path: path(at), value: value.to_owned() });
    for (result, message) in [
        (add("pool.app.balance", "hash"), "pool.app.balance is neither a list nor a new table"),
        (add("pool.app", "{}"), "pool.app exists already"),
        (add("pool.new", "x"), "pool.new is neither a list nor a new table"),
        (add("listener.web.route", "x"), "an entry of listener.web.route is a table"),
        (
            add("acl.new", "deny 10.0.0.1"),
            "acl.new is neither a list nor a new table in braces: nothing can be added to it\n  hint: `set` gives a key its value; a new access list: ",
        ),
        (add("pool.app.backends.3", "h:1"), "pool.app.backends has no entry \"3\""),
        (
            add("listener.web.route.1", "{ pool = \"app\" }"),
            "listener.web.route.1 is a section of its own: nothing can be put before it",
        ),
        (
            entry("listener.web.route", "/api/"),
            "listener.web.route has no entry \"/api/\"\n  hint: its entries are 1 { path = \"/api/\", ... }",
        ),
        (set("pool.app", "5"), "an entry of pool.app is a table"),
        (set("pool.app.balance.x", "5"), "pool.app.balance is a single value"),
        (set("pool.app.backends.7.weight", "5"), "pool.app.backends has no entry \"7.weight\""),
        (set("pool.app.balance", "\"x"), "\"\\\"x\" is not a TOML value"),
        (set("process.workers", "99999999999999999999"), "99999999999999999999 is too large"),
        (set("pool.app.queue", "-99999999999999999999"), "-99999999999999999999 is too large"),
        (remove("pool.ap"), "pool.ap is not in the configuration\n  hint: did you mean \"app\"?"),
        (remove("pool.app.weight"), "pool.app.weight is not in the configuration"),
        (
            entry("pool.app.backends", "10.0.0.1:1"),
            "pool.app.backends has no entry \"10.0.0.1:1\"\n  hint: its entries are 1 \"10.0.0.11:8000\", 2 ",
        ),
        (entry("pool.app", "x"), "pool.app is a table"),
        (entry("listener.web.bind", ":81"), "listener.web.bind is not \":81\""),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}\n{message}");
    }
    assert!(apply("[a", &Edit::Remove { path: path("a") }).is_err());
}
