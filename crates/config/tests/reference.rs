//! The reference page and the schema in `docs/` are what the types say. `UPDATE_GOLDEN=1` writes them anew.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "this test reads and writes its files")]

use std::path::Path;

use config::{Environment, Source, load, schema};

#[test]
fn the_page_and_the_schema_are_what_the_types_say() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (name, generated) in [("config.md", schema::reference()), ("config.schema.json", schema::json())] {
        let path = docs.join(name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(&docs).unwrap();
            std::fs::write(&path, &generated).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == generated, "docs/{name} is out of date: run the tests with UPDATE_GOLDEN=1");
    }
}

#[test]
fn every_example_of_the_page_loads_without_a_warning() {
    let page = schema::reference();
    let blocks: Vec<_> =
        page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 12, "only {} examples", blocks.len());
    for example in blocks {
        let mut text = example.to_owned();
        if !text.contains("[listener.") {
            text.push_str("\n[listener.some]\nbind = \":8080\"\npool = \"app\"\n");
        }
        if !text.contains("[pool.") {
            text.push_str("\n[pool.app]\nbackends = [\"10.0.0.11:8000\"]\n");
        }
        let source = Source { name: "example".into(), text };
        match load(&source, &Environment::default()) {
            Ok(loaded) => assert!(loaded.warnings.is_empty(), "{example}\n{}", loaded.warnings),
            Err(faults) => panic!("{example}\n{faults}"),
        }
    }
}

#[test]
fn every_key_says_what_it_means() {
    let schema: serde_json::Value = serde_json::from_str(&schema::json()).unwrap();
    let mut keys = 0;
    let mut without = Vec::new();
    look(&schema, "", &mut keys, &mut without);
    assert!(keys > 90, "only {keys} keys were found");
    assert!(without.is_empty(), "keys without a meaning: {without:?}");
}

fn look(schema: &serde_json::Value, path: &str, keys: &mut usize, without: &mut Vec<String>) {
    match schema {
        serde_json::Value::Object(object) => {
            for (key, inner) in object {
                if key == "properties" {
                    for (name, property) in inner.as_object().unwrap() {
                        *keys += 1;
                        let path = format!("{path}.{name}");
                        if property["description"].as_str().is_none_or(str::is_empty) {
                            without.push(path.clone());
                        }
                        look(property, &path, keys, without);
                    }
                } else {
                    look(inner, path, keys, without);
                }
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|inner| look(inner, path, keys, without)),
        _ => {}
    }
}
