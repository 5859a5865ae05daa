//! Properties of live changes: a change does to the values what it says, and to the text nothing else.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fmt::Write;

use config::difference::Difference;
use config::edit::{self, Edit, Path};
use config::{Environment, Source, load};
use proptest::prelude::*;
use toml::{Table, Value};

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % most as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn may(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// Writes a valid configuration in a layout of a person: comments, lists in lines, tables in braces, any order.
fn document(random: &mut Random) -> String {
    let mut sections = vec![
        "[process]\nworkers = 2  # c-workers\n".to_owned(),
        "[access-log]\n# c-above-target\ntarget = \"off\"\n".to_owned(),
    ];
    for name in ["x", "y", "z"] {
        sections.push(pool(random, name));
    }
    for name in ["a", "b"] {
        sections.push(listener(random, name));
    }
    sections.extend([acl(random), datagrams(random), encrypted(random)]);
    for at in (1..sections.len()).rev() {
        sections.swap(at, random.below(at + 1));
    }
    let mut text = random.one(&["", "# c-file\n\n", "\n"]).to_owned();
    for (at, section) in sections.iter().enumerate() {
        if random.may() {
            let _ = writeln!(text, "# c-above-{at}");
        }
        text.push_str(section);
        text.push_str(random.one(&["", "\n", "\n\n"]));
    }
    text.push_str(random.one(&["", "# c-end\n"]));
    if random.below(4) == 0 {
        text = text.trim_end().to_owned();
    }
    text
}

fn pool(random: &mut Random, name: &str) -> String {
    let mut keys = vec![backends(random, name)];
    if random.may() {
        keys.push(format!("balance = \"hash\"{}\n", random.one(&["", "  # c-balance", " #c-tight"])));
    }
    match random.below(3) {
        0 => keys.push("timeouts = { connect = \"2s\", queue = \"1s\" }\n".to_owned()),
        1 => keys.push("timeouts.connect = '2s'\n".to_owned()),
        _ => {}
    }
    if random.may() {
        keys.reverse();
    }
    let sub = if random.may() && !keys.concat().contains("timeouts") {
        format!("\n[pool.{name}.timeouts]\nconnect = \"3s\"  # c-{name}-connect\n")
    } else {
        String::new()
    };
    format!("[pool.{name}]\n{}{sub}", keys.concat())
}

fn backends(random: &mut Random, name: &str) -> String {
    let count = 1 + random.below(4);
    let entries: Vec<String> = (0..count)
        .map(|at| {
            let address = format!("10.0.{}.{at}:80", name.as_bytes()[0]);
            match random.below(3) {
                0 => format!("{{ address = \"{address}\", weight = 2 }}"),
                1 => format!("'{address}'"),
                _ => format!("\"{address}\""),
            }
        })
        .collect();
    if random.may() {
        let close = random.one(&["]", " ]", ",]"]);
        return format!(
            "backends = [{}{close}  # c-{name}-backends\n",
            entries.join(random.one(&[", ", ","]))
        );
    }
    let mut text = "backends = [\n".to_owned();
    for (at, entry) in entries.iter().enumerate() {
        if random.below(3) == 0 {
            let _ = writeln!(text, "    # c-above-{name}-{at}-");
        }
        let comma = if at + 1 < count || random.may() { "," } else { "" };
        let comment = if random.may() { format!("  # c-of-{name}-{at}-") } else { String::new() };
        let _ = writeln!(text, "    {entry}{comma}{comment}");
    }
    text + "]\n"
}

fn listener(random: &mut Random, name: &str) -> String {
    let port = 8000 + u32::from(name.as_bytes()[0]);
    let bind = match random.below(3) {
        0 => format!("bind = \"127.0.0.1:{port}\"\n"),
        1 => format!("bind = [\"127.0.0.1:{port}\"]\n"),
        _ => format!("bind = [ \"127.0.0.1:{port}\", \"127.0.0.2:{port}\" ]  # c-bind\n"),
    };
    let mut text = format!("[listener.{name}]\n{bind}protocol = \"http\"\npool = \"x\"\n");
    for at in 0..random.below(3) {
        let comment = if random.may() { format!("# c-above-route-{name}-{at}-\n") } else { String::new() };
        let _ = write!(text, "\n{comment}[[listener.{name}.route]]\npath = \"/{at}\"\npool = \"y\"\n");
    }
    text
}

fn acl(random: &mut Random) -> String {
    let entries: Vec<_> = (0..1 + random.below(3))
        .map(|at| format!("\"{} 10.{at}.0.0/16\"", random.one(&["permit", "deny"])))
        .collect();
    let entries = match random.may() {
        true => format!("entries = [{}]  # c-entries\n", entries.join(random.one(&[", ", ","]))),
        false => format!("entries = [\n    {}{}\n]\n", entries.join(",\n    "), random.one(&[",", ""])),
    };
    let default = "default = \"deny\"  # c-default\n";
    match random.may() {
        true => format!("[acl.office]\n{entries}{default}"),
        false => format!("[acl.office]\n{default}{entries}"),
    }
}

fn datagrams(random: &mut Random) -> String {
    let mut text =
        "[listener.u]\nbind = \"127.0.0.1:9053\"\nprotocol = \"udp\"  # c-udp\npool = \"y\"\n".to_owned();
    text.push_str(random.one(&["", "acl = \"office\"\n", "replies = 1  # c-replies\n"]));
    text.push_str(random.one(&["", "max-flows = 100\n"]));
    text
}

fn encrypted(random: &mut Random) -> String {
    let text = "[listener.s]\nbind = \"127.0.0.1:9443\"\npool = \"x\"\n".to_owned();
    text + match random.below(4) {
        0 => "tls = { certificates = \"/c\", min-version = \"1.3\" }  # c-tls\n",
        1 => "tls.certificates = '/c'\nacl = \"office\"\n",
        2 => "\n[listener.s.tls]\ncertificates = \"/c\"  # c-certificates\nhandshake-timeout = \"5s\"\n",
        _ => "acl = \"office\"\n\n[listener.s.tls]\ncertificates = \"/c\"\n",
    }
}

/// A change, what it does to the values, and the comments that go with what it removes.
struct Step {
    edit: Edit,
    model: Table,
    gone: Vec<String>,
}

fn keys<'a>(table: &'a mut Table, path: &[&str]) -> &'a mut Table {
    path.iter().fold(table, |table, key| {
        let inner = table.entry((*key).to_owned()).or_insert_with(|| Value::Table(Table::new()));
        inner.as_table_mut().unwrap()
    })
}

fn step(random: &mut Random, values: &Table, number: usize) -> Option<Step> {
    let mut model = values.clone();
    let mut gone = Vec::new();
    let path = |text: String| Path::parse(&text).unwrap();
    let names: Vec<String> = values["pool"].as_table()?.keys().cloned().collect();
    let pool = names[random.below(names.len())].clone();
    let listener = random.one(&["a", "b"]);
    let list = |model: &mut Table, pool: &str| {
        let list = keys(model, &["pool", pool]).get_mut("backends").unwrap();
        list.as_array_mut().unwrap().clone()
    };
    let put_list = |model: &mut Table, list: Vec<Value>| {
        keys(model, &["pool", &pool]).insert("backends".to_owned(), Value::Array(list));
    };
    let edit = match random.below(16) {
        0 => {
            let value = random.one(&["hash", "round-robin", "two-choices"]);
            keys(&mut model, &["pool", &pool]).insert("balance".to_owned(), value.into());
            Edit::Set { path: path(format!("pool.{pool}.balance")), value: value.to_owned() }
        }
        1 => {
            let value = random.one(&["4s", "500ms"]);
            let key = random.one(&["connect", "queue"]);
            keys(&mut model, &["pool", &pool, "timeouts"]).insert(key.to_owned(), value.into());
            Edit::Set { path: path(format!("pool.{pool}.timeouts.{key}")), value: value.to_owned() }
        }
        2 => {
            keys(&mut model, &["process"]).insert("drain-timeout".to_owned(), "7s".into());
            Edit::Set { path: path("process.drain-timeout".to_owned()), value: "\"7s\"".to_owned() }
        }
        3 => {
            let mut all = list(&mut model, &pool);
            let at = random.below(all.len().max(1));
            all.get(at)?;
            if let Value::String(address) = &all[at] {
                all[at] =
                    Value::Table([("address".to_owned(), address.clone().into())].into_iter().collect());
            }
            all[at].as_table_mut().unwrap().insert("weight".to_owned(), 9.into());
            put_list(&mut model, all);
            Edit::Set { path: path(format!("pool.{pool}.backends.{}.weight", at + 1)), value: "9".to_owned() }
        }
        4 => {
            let mut all = list(&mut model, &pool);
            let address = format!("10.9.9.9:{number}");
            all.push(address.clone().into());
            put_list(&mut model, all);
            Edit::Add { path: path(format!("pool.{pool}.backends")), value: address }
        }
        5 => {
            let mut all = list(&mut model, &pool);
            let at = random.below(all.len().max(1));
            all.get(at)?;
            let name = |value: &Value| {
                value.as_str().unwrap_or_else(|| value["address"].as_str().unwrap()).to_owned()
            };
            let address = name(&all.remove(at));
            // Comments have the number that the entry had at first.
            let first = address
                .rsplit_once(':')
                .and_then(|(host, _)| host.rsplit_once('.'))
                .map(|(_, last)| last.to_owned());
            let first = first.unwrap_or_default();
            gone.extend([format!("c-of-{pool}-{first}-"), format!("c-above-{pool}-{first}-")]);
            put_list(&mut model, all);
            let by_value = random.may();
            let path_of = |last: &str| path(format!("pool.{pool}.backends{last}"));
            match by_value {
                true => Edit::RemoveEntry { path: path_of(""), value: address },
                false => Edit::Remove { path: path_of(&format!(".{}", at + 1)) },
            }
        }
        6 => {
            let name = format!("new-{number}");
            let entry = [("backends".to_owned(), Value::Array(vec!["h:1".into()]))].into_iter().collect();
            keys(&mut model, &["pool"]).insert(name.clone(), Value::Table(entry));
            Edit::Add { path: path(format!("pool.{name}")), value: "{ backends = [\"h:1\"] }".to_owned() }
        }
        7 => {
            let entry: Table =
                [("host".to_owned(), format!("h{number}").into()), ("pool".to_owned(), "y".into())]
                    .into_iter()
                    .collect();
            let routes = keys(&mut model, &["listener", listener]);
            let routes = routes.entry("route".to_owned()).or_insert_with(|| Value::Array(Vec::new()));
            routes.as_array_mut().unwrap().push(Value::Table(entry));
            let value = format!("{{ host = \"h{number}\", pool = \"y\" }}");
            Edit::Add { path: path(format!("listener.{listener}.route")), value }
        }
        8 => {
            let section = keys(&mut model, &["listener", listener]);
            let routes = section.get_mut("route")?.as_array_mut()?;
            let at = random.below(routes.len());
            let removed = routes.remove(at);
            if routes.is_empty() {
                section.remove("route");
            }
            let name = removed.get("path").and_then(Value::as_str).unwrap_or("/none").replace('/', "");
            gone.push(format!("c-above-route-{listener}-{name}-"));
            // A comment that stands directly above any section goes with that section.
            gone.push("c-above-".to_owned());
            Edit::Remove { path: path(format!("listener.{listener}.route.{}", at + 1)) }
        }
        9 => {
            let value = keys(&mut model, &["listener", listener]);
            let port = format!("127.0.0.3:{number}");
            let binds = match value.remove("bind")? {
                Value::Array(mut all) => {
                    all.push(port.clone().into());
                    all
                }
                single => vec![single, port.clone().into()],
            };
            value.insert("bind".to_owned(), Value::Array(binds));
            Edit::Add { path: path(format!("listener.{listener}.bind")), value: port }
        }
        10 => {
            let value = random.one(&["permit", "deny"]);
            keys(&mut model, &["acl", "office"]).insert("default".to_owned(), value.into());
            Edit::Set { path: path("acl.office.default".to_owned()), value: value.to_owned() }
        }
        11 => {
            let entry = format!("{} 192.0.2.{number}", random.one(&["permit", "deny"]));
            let section = keys(&mut model, &["acl", "office"]);
            section.get_mut("entries")?.as_array_mut()?.push(entry.clone().into());
            Edit::Add { path: path("acl.office.entries".to_owned()), value: entry }
        }
        12 => {
            let entries = keys(&mut model, &["acl", "office"]).get_mut("entries")?.as_array_mut()?;
            let at = random.below(entries.len().max(1));
            let entry = entries.get(at)?.as_str()?.to_owned();
            entries.remove(at);
            match random.may() {
                true => Edit::RemoveEntry { path: path("acl.office.entries".to_owned()), value: entry },
                false => Edit::Remove { path: path(format!("acl.office.entries.{}", at + 1)) },
            }
        }
        13 => {
            let (key, value) = match random.may() {
                true => ("handshake-timeout", "7s"),
                false => ("min-version", "\"1.3\""),
            };
            keys(&mut model, &["listener", "s", "tls"])
                .insert(key.to_owned(), value.trim_matches('"').into());
            Edit::Set { path: path(format!("listener.s.tls.{key}")), value: value.to_owned() }
        }
        14 => {
            let key = random.one(&["max-flows", "flows-per-source", "replies"]);
            keys(&mut model, &["listener", "u"]).insert(key.to_owned(), 50.into());
            Edit::Set { path: path(format!("listener.u.{key}")), value: "50".to_owned() }
        }
        _ => {
            keys(&mut model, &["pool"]).remove(&pool);
            if ["x", "y"].contains(&&*pool) {
                return None;
            }
            gone.extend([
                "c-above-".to_owned(),
                format!("-{pool}-"),
                "c-balance".to_owned(),
                "c-tight".to_owned(),
            ]);
            Edit::Remove { path: path(format!("pool.{pool}")) }
        }
    };
    Some(Step { edit, model, gone })
}

fn comments(text: &str) -> Vec<&str> {
    let mut all: Vec<&str> =
        text.lines().filter_map(|line| line.split_once('#')).map(|(_, comment)| comment.trim()).collect();
    all.sort_unstable();
    all
}

fn values(text: &str) -> Table {
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_change_does_what_it_says_and_nothing_else(seed in any::<u64>()) {
        let mut random = Random(seed);
        let mut text = document(&mut random);
        for number in 1..12 {
            let before = values(&text);
            let Some(Step { edit, model, gone }) = step(&mut random, &before, number) else { continue };
            let new = edit::apply(&text, &edit).unwrap_or_else(|error| panic!("{edit:?}: {error}\n{text}"));
            prop_assert_eq!(values(&new), model, "{:?}\n{}\n--- becomes\n{}", edit, text, new);

            let kept = comments(&new);
            for comment in comments(&text) {
                let goes = gone.iter().any(|part| comment.contains(&**part));
                prop_assert!(goes || kept.contains(&comment), "{:?}: {} is lost\n{}\n--- becomes\n{}", edit, comment, text, new);
            }
            let difference = Difference::between(&text, &new);
            prop_assert_eq!(difference.apply(&text), Some(new.clone()));
            if matches!(edit, Edit::Set { .. } | Edit::Add { .. }) {
                let removed: usize = difference.hunks.iter().map(|hunk| hunk.removed.len()).sum();
                prop_assert!(removed <= 1, "{:?}\n{}\n--- becomes\n{}", edit, text, new);
            }
            let windows = text.replace('\n', "\r\n");
            prop_assert_eq!(edit::apply(&windows, &edit).unwrap(), new.replace('\n', "\r\n"));
            text = new;
        }
    }

    #[test]
    fn state_to_text_to_state_is_the_identity_after_any_changes(seed in any::<u64>()) {
        let mut random = Random(seed);
        let mut text = document(&mut random);
        for number in 1..8 {
            let load = |text: &str| {
                let source = Source { name: "test".to_owned(), text: text.to_owned() };
                load(&source, &Environment::default())
            };
            let loaded = load(&text);
            prop_assert!(number > 1 || loaded.is_ok(), "the first document is refused:\n{}", text);
            if let Ok(loaded) = loaded {
                let printed = load(&loaded.print()).unwrap();
                prop_assert_eq!(format!("{:?}", printed.config), format!("{:?}", loaded.config));
                prop_assert_eq!(loaded.text(), &*text);
            }
            let Some(Step { edit, .. }) = step(&mut random, &values(&text), number) else { continue };
            text = edit::apply(&text, &edit).unwrap();
        }
    }
}
