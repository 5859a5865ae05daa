//! Configurations of several files: `check`, start, reload, live changes, `save`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use testing::client::get;
use testing::server::{Setup, binary};
use testing::tools::{self, Root};
use testing::{Scripted, Server};

const MAIN: &str = "include = [\"conf.d/*.toml\", \"door.toml\"]\n\n[control]\nsocket = \"@DIR@/control.sock\"\n\n\
                    [access-log]\ntarget = \"off\"\n";
const DOOR: &str =
    "# The door.\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n";

fn pool(name: &str, backend: &str) -> String {
    format!("# {name}\n[pool.{name}]\nbackends = [\"{backend}\"] # rack 1\n")
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn setup(backend: &str) -> Setup {
    let setup = Setup::new(MAIN);
    write(setup.dir(), "door.toml", DOOR);
    write(setup.dir(), "conf.d/app.toml", &pool("app", backend));
    setup
}

fn text(server: &Server, name: &str) -> String {
    fs::read_to_string(server.dir.path().join(name)).unwrap()
}

#[track_caller]
fn good(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn bad(output: Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn body(server: &Server) -> String {
    get(&server.address("web"), "/").text()
}

#[test]
fn files_that_are_added_to_a_directory_are_served_after_a_reload() {
    let (one, two) = (Scripted::answering("one"), Scripted::answering("two"));
    let server = setup(&one.address).start();
    let directory = server.dir.path();
    assert_eq!(body(&server), "one");
    write(directory, "conf.d/shop.toml", &pool("shop", &two.address));
    write(directory, "door.toml", &DOOR.replace("\"app\"", "\"shop\""));
    good(server.ctl(&["reload"]));
    assert_eq!(body(&server), "two", "also with the files that the sandbox leaves");

    // A fault is said with its own file, and changes nothing.
    write(directory, "conf.d/shop.toml", "[pool.app]\nbackends = [\"127.0.0.1:1\"]\n");
    let said = bad(server.ctl(&["reload"]));
    let shop = directory.join("conf.d/shop.toml").display().to_string();
    let app = directory.join("conf.d/app.toml").display().to_string();
    assert!(said.contains(&format!("error: {shop}:1:7: pool.app: pool.app is in two files")), "{said}");
    assert!(said.contains(&format!("the other one is ({app} line 2)")), "{said}");
    assert_eq!(body(&server), "two");
    fs::remove_file(directory.join("conf.d/shop.toml")).unwrap();
    write(directory, "door.toml", DOOR);
    good(server.ctl(&["reload"]));
    assert_eq!(body(&server), "one");
}

#[test]
fn check_names_the_file_of_each_value_and_of_each_fault() {
    let setup = setup("127.0.0.1:1");
    let directory = setup.dir().to_owned();
    let server = setup.start();
    let check = |more: &[&str]| {
        let file = directory.join("penstock.toml");
        Command::new(binary()).arg("check").arg(file).args(more).env_clear().output().unwrap()
    };
    let print = good(check(&["--print"]));
    let app = directory.join("conf.d/app.toml").display().to_string();
    assert!(print.contains(&format!("backends = [\"127.0.0.1:1\"]  # {app} line 3\n")), "{print}");
    let privileges = good(check(&["--privileges"]));
    assert!(privileges.contains("include"), "{privileges}");
    write(&directory, "conf.d/app.toml", "\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\nretires = 1\n");
    let said = bad(check(&[]));
    assert!(said.contains(&format!("error: {app}:4:1: pool.app.retires: unknown key \"retires\"")), "{said}");
    write(&directory, "penstock.toml", "include = \"none.toml\"\n");
    let said = bad(check(&[]));
    assert!(
        said.contains("penstock.toml:1:11: include: \"none.toml\" cannot be read: No such file"),
        "{said}"
    );
    drop(server);
}

#[test]
fn live_changes_are_saved_into_the_file_that_has_the_key() {
    let (one, two) = (Scripted::answering("one"), Scripted::answering("two"));
    let server = setup(&one.address).start();
    let main = text(&server, "penstock.toml");
    good(server.ctl(&["add", "pool.app.backends", &two.address]));
    good(server.ctl(&["remove", "pool.app.backends", &one.address]));
    good(server.ctl(&["set", "listener.web.backlog", "100"]));
    assert_eq!(body(&server), "two");
    let diff = good(server.ctl(&["diff"]));
    assert!(
        diff.contains(
            "--- conf.d/app.toml\n+++ conf.d/app.toml\n@@ -1,3 +1,3 @@\n # app\n [pool.app]\n-backends = "
        ),
        "{diff}"
    );
    assert!(diff.contains("--- door.toml\n"), "{diff}");
    let refused = bad(server.ctl(&["add", "include", "more.toml"]));
    assert!(refused.contains("`include` is not changed live") && refused.contains("ctl reload"), "{refused}");
    let refused = bad(server.ctl(&["save", server.dir.path().join("other.toml").to_str().unwrap()]));
    assert!(refused.contains("has several files"), "{refused}");
    assert!(!server.dir.path().join("other.toml").exists());

    let saved = good(server.ctl(&["save"]));
    assert!(saved.contains("has the configuration that is served: 3 changes"), "{saved}");
    assert_eq!(text(&server, "penstock.toml"), main);
    let app = text(&server, "conf.d/app.toml");
    assert_eq!(app, pool("app", &two.address), "comments stay");
    assert_eq!(text(&server, "door.toml"), format!("{DOOR}backlog = 100\n"));
    assert_eq!(server.ctl_json(&["status"])["unsaved_changes"], 0);

    // Undone, it is saved there too; a file that another program changed is not overwritten, nor is any other.
    good(server.ctl(&["undo"]));
    good(server.ctl(&["set", "pool.app.retries", "1"]));
    write(server.dir.path(), "conf.d/app.toml", &format!("{app}# by hand\n"));
    let refused = bad(server.ctl(&["save"]));
    assert!(refused.contains("conf.d/app.toml was changed since the server read it"), "{refused}");
    assert!(text(&server, "door.toml").contains("backlog"), "none is written if one cannot be");
    write(server.dir.path(), "conf.d/app.toml", &app);
    good(server.ctl(&["save"]));
    assert_eq!(text(&server, "door.toml"), DOOR);
    assert_eq!(text(&server, "conf.d/app.toml"), format!("{app}retries = 1\n"));
    good(server.ctl(&["reload"]));
    assert_eq!(body(&server), "two");
}

#[test]
fn save_says_what_the_server_cannot_load_in_lines_and_that_the_files_have_more_than_is_served() {
    let backend = Scripted::answering("one");
    let server = setup(&backend.address).start();
    let directory = server.dir.path();
    good(server.ctl(&["set", "pool.app.retries", "1"]));
    write(directory, "conf.d/broken.toml", "x = [\n");
    let said = bad(server.ctl(&["save"]));
    assert!(said.contains("its changes are in the file, which the server cannot load"), "{said}");
    assert!(said.contains("broken.toml:1:5: not TOML: ") && said.contains("\n  1 | x = [\n"), "{said}");
    assert!(!said.contains("\\n"), "{said}");
    assert!(text(&server, "conf.d/app.toml").contains("retries = 1"));

    write(directory, "conf.d/broken.toml", &pool("more", &backend.address));
    let said = bad(server.ctl(&["save"]));
    assert!(said.contains("another configuration than the served one\n  hint: a file was added"), "{said}");
    good(server.ctl(&["reload"]));
    assert_eq!(server.ctl_json(&["status"])["unsaved_changes"], 0);
    assert!(good(server.ctl(&["save"])).contains("has the configuration that is served"));
}

#[test]
fn ctl_finds_the_control_socket_in_an_included_file() {
    let backend = Scripted::answering("one");
    let setup = Setup::new("include = \"conf.d/*\"\n[access-log]\ntarget = \"off\"\n");
    let directory = setup.dir().to_owned();
    let socket = directory.join("control.sock").display().to_string();
    write(&directory, "conf.d/a.toml", &format!("[control]\nsocket = \"{socket}\"\n"));
    write(&directory, "conf.d/b.toml", &format!("{DOOR}{}", pool("app", &backend.address)));
    let server = setup.start();
    let file = directory.join("penstock.toml");
    let status = Command::new(binary())
        .args(["ctl", "--config"])
        .arg(file)
        .arg("status")
        .env_clear()
        .output()
        .unwrap();
    good(status);
    drop(server);
}

#[test]
fn save_writes_none_of_several_files_while_one_cannot_be_replaced() {
    if tools::root("mounts a file") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("one");
    let server = setup(&backend.address).start();
    for change in [["set", "pool.app.balance", "maglev"], ["set", "listener.web.max-connections", "5"]] {
        good(server.ctl(&change));
    }
    let before = (text(&server, "conf.d/app.toml"), text(&server, "door.toml"));
    let mut save = Command::new("unshare");
    // The kernel renames no file over one that is a mount point.
    let script = "mount --bind \"$1\" \"$1\" && exec \"$0\" ctl --socket \"$2\" save";
    save.args(["-m", "sh", "-c", script, binary()])
        .arg(server.dir.path().join("door.toml"))
        .arg(server.control_socket());
    let said = bad(save.output().unwrap());
    assert!(said.contains("door.toml cannot be written: ") && said.contains("nothing has changed"), "{said}");
    assert_eq!(before, (text(&server, "conf.d/app.toml"), text(&server, "door.toml")));
    good(server.ctl(&["save"]));
    assert!(
        text(&server, "conf.d/app.toml").contains("maglev") && text(&server, "door.toml").contains("= 5")
    );
}
