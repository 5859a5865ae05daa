use super::*;

fn catalog() -> Catalog {
    let mut catalog = Catalog::new();
    catalog.add_default(OWN);
    catalog
        .add_flat(
            OWN,
            "/c/groups",
            "# ours\nweb: web[1-3]\ndb: db1 db2 # the old ones\nweb: web9\nall-web: @web,@up:one\n",
        )
        .unwrap();
    let conf = "[Main]\ndefault: local\nconfdir: /e/d $CFGDIR/d \"/e/with blank\"\n\n[up,up2]\nmap: sinfo -p $GROUP\n   -s $SOURCE\nlist = groups\n";
    catalog.add_conf("/e/groups.conf", &Conf::parse("/e/groups.conf", conf, "/e", "/cfg").unwrap());
    catalog
        .add_yaml(
            "/e/r.yaml",
            "local:\n  rack1: r1n[1-2]\n  both: ['@rack1', \"@penstock:db\"]\n  none:\nother:\n  a: x\n",
        )
        .unwrap();
    catalog
}

fn set(text: &str) -> Result<String, String> {
    let catalog = catalog();
    let mut run = |upcall: &Upcall| {
        assert_eq!(upcall.directory, "/e");
        match upcall.command.as_str() {
            "sinfo -p one\n-s up" => Ok("u[1-2]\nu3 u4".to_owned()),
            "groups" => Ok("one empty\nbroken".to_owned()),
            "sinfo -p broken\n-s up" => Err("exit status 1: no such partition".to_owned()),
            _ => Ok(String::new()),
        }
    };
    NodeSet::parse(text, &mut catalog.look_up(&mut run))
        .map(|set| set.to_string())
        .map_err(|fault| fault.to_string())
}

#[test]
fn groups_are_found_in_every_kind_of_source() {
    assert_eq!(set("@web").unwrap(), "web[1-3,9]");
    assert_eq!(set("@rack1").unwrap(), "r1n[1-2]", "the default source of groups.conf comes after ours");
    assert_eq!(set("@local:both").unwrap(), "db[1-2],r1n[1-2]");
    assert_eq!(set("@up:one").unwrap(), "u[1-4]");
    assert_eq!(set("@all-web").unwrap(), "u[1-4],web[1-3,9]");
    assert_eq!(set("@up:empty").unwrap(), "");
    assert_eq!(set("@local:none").unwrap(), "");
    assert_eq!(set("@other:*").unwrap(), "x");
    assert_eq!(set("web*!web1").unwrap(), "web[2-3,9]");
}

#[test]
fn an_unknown_group_is_named_with_near_ones_and_where_it_was_looked_for() {
    let said = set("@wev").unwrap_err();
    assert_eq!(
        said,
        "node set \"@wev\", column 2: no group \"wev\" in \"penstock\" (/c/groups), nor in \"local\" (/e/r.yaml); did you mean @web?"
    );
    assert!(
        set("@up:on").unwrap_err().contains("did you mean @up2:one, @up:one?"),
        "{}",
        set("@up:on").unwrap_err()
    );
    assert!(
        set("@upp:one")
            .unwrap_err()
            .contains("no group source \"upp\"; there is local, other, penstock, up, up2")
    );
    let nothing = Catalog::new();
    let said =
        NodeSet::parse("@web", &mut nothing.look_up(&mut |_| Ok(String::new()))).unwrap_err().to_string();
    assert!(said.contains("no file of groups exists"), "{said}");
}

#[test]
fn a_command_that_fails_is_told_with_its_file() {
    let said = set("@up:broken").unwrap_err();
    assert!(said.contains("the command of group source \"up\" failed: exit status 1: no such partition; correct it in /e/groups.conf"), "{said}");
}

#[test]
fn a_command_is_run_once_and_sees_only_harmless_names() {
    let catalog = catalog();
    let mut ran = Vec::new();
    let mut run = |upcall: &Upcall| {
        ran.push(upcall.command.clone());
        Ok("n1".to_owned())
    };
    let mut lookup = catalog.look_up(&mut run);
    NodeSet::parse("@up:one,@up:one,@up:one!@up:one", &mut lookup).unwrap();
    assert!(NodeSet::parse("@up:$(id)", &mut lookup).is_err());
    assert!(NodeSet::parse("@up:a;b", &mut lookup).is_err());
    drop(lookup);
    assert_eq!(ran, ["sinfo -p one\n-s up"]);
}

#[test]
fn every_bad_line_of_a_file_is_told_and_the_others_count() {
    let mut catalog = Catalog::new();
    let faults =
        catalog.add_flat(OWN, "/c/groups", "\u{feff}web: web1\r\nno colon\na b: x\n-x: y\n").unwrap_err();
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(said[0], "/c/groups:2: this line has no \":\"; write NAME: SET, such as web: web[1-9]");
    assert!(said[1].starts_with("/c/groups:3: \"a b\" cannot be the name of a group"), "{said:?}");
    assert_eq!(said.len(), 3);
    catalog.add_default(OWN);
    assert_eq!(
        NodeSet::parse("@web", &mut catalog.look_up(&mut |_| Ok(String::new()))).unwrap().to_string(),
        "web1"
    );
}

#[test]
fn groups_conf_is_read_as_clustershell_reads_it() {
    let text = "; c\n[Main]\ndefault=up\nautodir: $CFGDIR/groups.d\nconfdir: /a /a '/b c'\n[up, down]\nmap: m $CFGDIR\nall: a\nreverse: r $NODE\n";
    let conf = Conf::parse("p", text, "/d", "/cfg").unwrap();
    assert_eq!(conf.default.as_deref(), Some("up"));
    assert_eq!(conf.auto_directories, ["/cfg/groups.d"]);
    assert_eq!(conf.conf_directories, ["/a", "/b c"]);
    assert_eq!(conf.sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>(), ["up", "down"]);
    assert_eq!(conf.sources[0].upcalls.map, "m /cfg");
    assert_eq!(conf.sources[0].upcalls.reverse.as_deref(), Some("r $NODE"));
    let faults = Conf::parse("p", "x: y\n[up]\nnothing\nlist: l\n", "/d", "/cfg").unwrap_err();
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[2].starts_with("p:2: group source \"up\" has no `map`"), "{said:?}");
}

#[test]
fn yaml_that_is_not_groups_is_refused_with_its_line() {
    for (text, part) in [
        ("- a\n", "p:1: the file is not a mapping of sources"),
        ("s:\n  - a\n", "p:1: source \"s\" is not a mapping of groups"),
        ("s:\n  g: 5\n", "p:2: the nodes of \"g\" are not text"),
        ("s:\n  g: {a: b}\n", "p:2: the nodes of \"g\" are not text"),
        ("s:\n  5: a\n", "p:2: the name of this group is not text"),
        ("s: [a\n", "this is not YAML"),
        ("s:\n  g: a\n  g: b\n", "this is not YAML"),
    ] {
        let said = Catalog::new().add_yaml("p", text).unwrap_err().to_string();
        assert!(said.contains(part), "{text:?}: {said}");
    }
    Catalog::new().add_yaml("p", "").unwrap();
}

#[test]
fn the_groups_of_a_node_are_found() {
    let catalog = catalog();
    let mut run = |_: &Upcall| Ok("one".to_owned());
    let mut lookup = catalog.look_up(&mut run);
    assert_eq!(lookup.groups_of(OWN, "db2").unwrap(), ["db"]);
    assert_eq!(lookup.groups_of("local", "r1n1").unwrap(), ["both", "rack1"]);
}
