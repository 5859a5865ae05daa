use super::*;

struct Fixed(Vec<(&'static str, &'static str)>);

impl Groups for Fixed {
    fn group(&mut self, source: Option<&str>, name: &str) -> Result<Definition, GroupFault> {
        let found = self.0.iter().find(|(group, _)| *group == name);
        let text = found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| GroupFault {
            what: format!("no group \"{name}\""),
            advice: "name another".to_owned(),
        })?;
        Ok(Definition { text, source: source.unwrap_or("here").to_owned() })
    }

    fn all(&mut self, source: Option<&str>) -> Result<Definition, GroupFault> {
        let text = self.0.iter().map(|(name, _)| format!("@{name} ")).collect();
        Ok(Definition { text, source: source.unwrap_or("here").to_owned() })
    }

    fn aliases(&mut self) -> Vec<String> {
        vec!["nas".to_owned()]
    }
}

fn names(text: &str) -> String {
    let set = NodeSet::parse(text, &mut NoGroups).unwrap_or_else(|fault| panic!("{fault}"));
    set.names().join(" ")
}

fn fault(text: &str) -> String {
    NodeSet::parse(text, &mut NoGroups).expect_err(text).to_string()
}

fn fixed() -> Fixed {
    Fixed(vec![
        ("web", "web[1-3]"),
        ("db", "db1\ndb2 db3"),
        ("both", "@web,@db!db2"),
        ("rack1", "r1"),
        ("rack2", "r2"),
        ("bad", "x,node["),
    ])
}

fn with_groups(text: &str) -> Result<String, Fault> {
    NodeSet::parse(text, &mut fixed()).map(|set| set.to_string())
}

fn of_groups(text: &str) -> Result<String, String> {
    NodeSet::parse_groups(text, &mut fixed()).map(|set| set.to_string()).map_err(|fault| fault.to_string())
}

#[test]
fn every_name_in_a_list_of_groups_is_a_group() {
    for text in ["web,db", "@web,db", "web,@db", "web db", "here:web,here:db"] {
        assert_eq!(of_groups(text).as_deref(), Ok("db[1-3],web[1-3]"), "{text}");
    }
    // Definitions of groups contain hosts, also under `parse_groups`.
    assert_eq!(of_groups("both!db").as_deref(), Ok("web[1-3]"));
    assert_eq!(of_groups("both&db").as_deref(), Ok("db[1,3]"));
    assert_eq!(of_groups("rack[1-2],web!both").as_deref(), Ok("r[1-2]"));
    assert!(of_groups("web,web1").unwrap_err().contains("column 5: no group \"web1\""));
    assert!(of_groups("web,d?").unwrap_err().contains("column 5: \"@d?\" is not the name of a group"));
}

#[test]
fn names_keep_the_order_in_which_they_were_written() {
    assert_eq!(names("web7,web[1-3],web2"), "web7 web1 web2 web3");
}

#[test]
fn operators_are_worked_off_from_left_to_right() {
    assert_eq!(names("a[1-5]!a3&a[1-3]"), "a1 a2");
    assert_eq!(names("a,b!a,a"), "b a");
    assert_eq!(names("a[1-3] ^ a[2-4]"), "a1 a4");
}

#[test]
fn addresses_of_ipv6_are_no_ranges() {
    assert_eq!(
        names("[2001:db8::1]:22,me@[fe80::1%eth0]:2222,2001:db8::7"),
        "[2001:db8::1]:22 me@[fe80::1%eth0]:2222 2001:db8::7"
    );
    // Without a port, `[::1]` and `::1` are the same host.
    assert_eq!(names("[::1],::1,me@[fe80::1%eth0],[::1]!::1"), "me@fe80::1%eth0");
    assert_eq!(names("[::1],::1"), "::1");
    assert_eq!(names("me@web[1-2]:2222"), "me@web1:2222 me@web2:2222");
    let set = NodeSet::parse("[2001:db8::2],[2001:db8::1],a2,a1", &mut NoGroups).unwrap();
    assert_eq!(set.to_string(), "2001:db8::[1-2],a[1-2]");
}

#[test]
fn a_set_that_explodes_is_refused_with_its_size_before_it_is_built() {
    assert!(
        fault("node[1-9999999]").contains("9999999 hosts are more than 100000"),
        "{}",
        fault("node[1-9999999]")
    );
    assert!(
        fault("a[1-999999999]b[1-999999999]c[1-999999999]d[1-999999999]e[1-999999999]")
            .contains("are more than")
    );
    assert!(fault("a[1-60000],b[1-60000]").contains("100001 hosts are more than 100000"));
}

#[test]
fn every_wrong_form_is_named_with_its_column_and_what_to_do() {
    for (text, column, part) in [
        ("node[1-", 5, "\"[\" is never closed; close it with \"]\""),
        ("node1]", 6, "\"]\" without its \"[\""),
        ("a[[1]]", 3, "a bracket within brackets"),
        ("n[1-2][3-4]", 7, "two ranges with nothing but digits"),
        ("n[1-2]0[3-4]", 8, "two ranges with nothing but digits"),
        ("é,n[5-1]", 5, "\"5-1\" goes down; write 1-5"),
        ("n[01-100]", 3, "write both with 3 digits (001)"),
        ("n[1-03]", 3, "has numbers padded to two lengths"),
        ("n[]", 3, "a number is missing here"),
        ("n[1,,2]", 5, "a number is missing here"),
        ("n[1,]", 5, "a number is missing here"),
        ("n[a-b]", 3, "\"a-b\" is not a number"),
        ("n[-3--1]", 3, "is not a number"),
        ("n[1-3/0]", 3, "a step of 0"),
        ("n[3/2]", 3, "no range to walk"),
        ("n[1-5/2/2]", 3, "is not a number"),
        ("n[99999999999999999999]", 3, "is too large"),
        (",a", 1, "\",\" has nothing before it"),
        ("a,", 2, "\",\" has nothing after it"),
        ("a,,b", 2, "\",\" has nothing after it"),
        ("a ! & b", 3, "\"!\" has nothing after it"),
        ("a,@", 3, "\"@\" without the name of a group"),
        ("@we*b", 1, "is not the name of a group"),
        ("@@web", 1, "is not the name of a group"),
        ("a,-oProxyCommand=x", 3, "begins with \"-\""),
        ("me@-x", 1, "begins with \"-\""),
        ("me@", 1, "names no host"),
        ("web{1,2}", 4, "ranges are written [1-3]"),
        ("10.0.0.0/24", 9, "networks are not scanned"),
        ("a;reboot", 2, "\";\" cannot be in the name of a host"),
        ("a\u{1b}[1-2]", 2, "\"\\u{1b}\" cannot be in the name of a host"),
        ("x[2001:db8::1]", 2, "neither a range nor an address of IPv6"),
        ("[2001:db8::1]:port", 1, "neither a range nor an address of IPv6"),
        ("[1:2]", 1, "neither a range nor an address of IPv6"),
        ("..", 1, "is not the name of a host"),
        ("web*", 1, "no groups are known here"),
    ] {
        let said = fault(text);
        assert!(said.contains(&format!("column {column}:")), "{text:?}: {said}");
        assert!(said.contains(part), "{text:?}: {said}");
    }
}

#[test]
fn groups_may_name_groups_and_have_ranges() {
    assert_eq!(with_groups("@both").unwrap(), "db[1,3],web[1-3]");
    assert_eq!(with_groups("@rack[1-2]").unwrap(), "r[1-2]");
    assert_eq!(with_groups("@here:web!web1").unwrap(), "web[2-3]");
}

#[test]
fn wildcards_match_the_nodes_of_all_groups_and_aliases() {
    let mut groups = Fixed(vec![("web", "web[1-3]"), ("db", "db1 db2")]);
    assert_eq!(NodeSet::parse("*!web?", &mut groups).unwrap().to_string(), "db[1-2],nas");
    assert_eq!(NodeSet::parse("w*[2-3]", &mut groups).unwrap().to_string(), "web[2-3]");
    let said = NodeSet::parse("mail*", &mut groups).unwrap_err().to_string();
    assert!(said.contains("\"mail*\" matches none of the 6 nodes"), "{said}");
}

#[test]
fn exclusion_matches_wildcards_on_the_set_itself() {
    let mut set = NodeSet::parse("web[1-20]", &mut NoGroups).unwrap();
    set.exclude("*3,web5", &mut NoGroups).unwrap();
    assert_eq!(set.to_string(), "web[1-2,4,6-12,14-20]");
}

#[test]
fn a_fault_within_a_group_names_the_group() {
    let said = with_groups("web1,@bad").unwrap_err().to_string();
    assert_eq!(
        said,
        "node set \"x,node[\" of group @here:bad, column 7: \"[\" is never closed; close it with \"]\""
    );
}

#[test]
fn groups_that_contain_themselves_are_refused() {
    let mut groups = Fixed(vec![("a", "x,@b"), ("b", "@c"), ("c", "y,@a")]);
    let said = NodeSet::parse("@a", &mut groups).unwrap_err().to_string();
    assert!(
        said.contains("group @here:a contains itself: @here:a -> @here:b -> @here:c -> @here:a"),
        "{said}"
    );
}

#[test]
fn groups_that_name_each_other_twice_are_read_once() {
    // Without the cache of parsed groups this would take 2^60 look-ups.
    let texts: Vec<(String, String)> =
        (0..60).map(|n| (format!("g{n}"), format!("@g{},@g{}", n + 1, n + 1))).collect();
    let mut all: Vec<(&'static str, &'static str)> = Vec::new();
    for (name, text) in texts {
        all.push((name.leak(), text.leak()));
    }
    all.push(("g60", "end"));
    assert_eq!(NodeSet::parse("@g0", &mut Fixed(all)).unwrap().to_string(), "end");
}

#[test]
fn folding_is_as_short_as_it_can_be() {
    for (names, folded) in [
        ("node3 node1 node2 node9", "node[1-3,9]"),
        ("a01 a02 a10 a3", "a[3,01-02,10]"),
        ("a9 a10 a09", "a[9,09-10]"),
        ("a08 a09 a100 a101", "a[08-09,100-101]"),
        ("r1n1 r1n2 r2n1 r2n2", "r[1-2]n[1-2]"),
        ("r1n1 r1n2 r2n1", "r1n[1-2],r2n1"),
        ("a1b1 a2b1 a3b2", "a[1-2]b1,a3b2"),
        ("web db mail", "db,mail,web"),
        ("10.0.0.1 10.0.0.2", "10.0.0.[1-2]"),
        ("n123456789012345678901 n123456789012345678902", "n123456789012345678901,n123456789012345678902"),
        ("a a", "a"),
        ("", ""),
    ] {
        assert_eq!(fold(names.split_whitespace()), folded, "{names}");
    }
}

#[test]
fn a_hundred_thousand_names_fold_back() {
    let text = "r[1-100]n[1-1000]";
    assert_eq!(NodeSet::parse(text, &mut NoGroups).unwrap().to_string(), text);
}

proptest::proptest! {
    #[test]
    fn any_text_gives_a_set_or_a_fault(text in "[a-c0-3,!&^@*? \\[\\]/:-]{0,24}") {
        let _ = with_groups(&text);
    }

    #[test]
    fn what_is_folded_is_read_back_as_the_same_names(names in proptest::collection::vec("[ab]{0,1}[0-2]{1,2}[-x]{1}[0-1]{0,2}y?", 0..30)) {
        let mut set = NodeSet::new();
        for name in names.iter().filter(|name| !name.starts_with('-')) {
            set.insert(name).unwrap();
        }
        let again = NodeSet::parse(&set.to_string(), &mut NoGroups).unwrap();
        proptest::prop_assert!(again == set, "{set} became {again}");
    }

    #[test]
    fn a_wildcard_matches_as_a_search_by_trial_does(pattern in "[ab*?]{0,6}", name in "[ab]{0,6}") {
        fn slow(pattern: &[u8], name: &[u8]) -> bool {
            match (pattern.first(), name.first()) {
                (None, None) => true,
                (Some(b'*'), _) => slow(&pattern[1..], name) || (!name.is_empty() && slow(pattern, &name[1..])),
                (Some(b'?'), Some(_)) => slow(&pattern[1..], &name[1..]),
                (Some(a), Some(b)) if a == b => slow(&pattern[1..], &name[1..]),
                _ => false,
            }
        }
        proptest::prop_assert_eq!(matches(&pattern, &name), slow(pattern.as_bytes(), name.as_bytes()));
    }
}
