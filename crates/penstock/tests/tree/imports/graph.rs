//! Which file of a crate uses items of which other file, read from its sources. An import of a module is no use of its file; the
//! paths that go through it are. Re-exports lead to the file that defines the item. Tests are left out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// A path in the source, by its names: `["crate", "tls", "Shared"]`.
type Names = Vec<String>;

/// Which file uses which other one, and what of it.
pub(super) type Uses = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// The sources of one crate, without its tests.
pub(super) struct Crate {
    root: PathBuf,
    modules: BTreeMap<Names, Module>,
}

#[derive(Default)]
struct Module {
    file: PathBuf,
    items: BTreeSet<String>,
    /// Names that `use` binds, with what they stand for.
    imports: HashMap<String, Names>,
    globs: Vec<Names>,
    /// Every path in the file, those of `use` included.
    paths: Vec<Names>,
}

impl Crate {
    /// Reads a crate from its `lib.rs` or `main.rs`.
    pub(super) fn read(root: &Path) -> Self {
        let mut it = Self { root: root.to_owned(), modules: BTreeMap::new() };
        for (file, directory) in [("lib.rs", root.to_owned()), ("main.rs", root.to_owned())] {
            if root.join(file).exists() {
                it.read_file(&root.join(file), &directory, Vec::new());
            }
        }
        it
    }

    fn read_file(&mut self, file: &Path, directory: &Path, module: Names) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.read_items(&syntax.items, file, directory, module);
    }

    fn read_items(&mut self, items: &[Item], file: &Path, directory: &Path, module: Names) {
        let mut here = Module { file: file.to_owned(), ..Module::default() };
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            here.items.extend(names_of(item));
            match item {
                Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let path = [module.clone(), vec![name.clone()]].concat();
                    let below = directory.join(&name);
                    match &child.content {
                        Some((_, items)) => self.read_items(items, file, &below, path),
                        None => {
                            let beside = directory.join(format!("{name}.rs"));
                            let file = if beside.exists() { beside } else { below.join("mod.rs") };
                            self.read_file(&file, &below, path);
                        }
                    }
                }
                Item::Use(one) => {
                    let before = here.paths.len();
                    here.read_use(&one.tree, Vec::new());
                    // A re-export is no use.
                    if !matches!(one.vis, syn::Visibility::Inherited) {
                        here.paths.truncate(before);
                    }
                }
                other => Paths(&mut here.paths).visit_item(other),
            }
        }
        self.modules.entry(module).or_default().join(here);
    }

    /// Which file uses which, and by what.
    pub(super) fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (name, module) in &self.modules {
            for path in &module.paths {
                let Some((file, item)) = self.definition(name, path, 0) else { continue };
                if file != module.file {
                    let short = |file: &Path| file.strip_prefix(&self.root).unwrap_or(file).to_owned();
                    uses.entry((short(&module.file), short(&file))).or_default().insert(item);
                }
            }
        }
        uses
    }

    /// The file that defines what a path in `module` leads to, and its name there. `None` for a module, and for another crate.
    fn definition(&self, module: &Names, path: &Names, depth: usize) -> Option<(PathBuf, String)> {
        let mut at = module.clone();
        let mut rest = path.as_slice();
        if depth > 20 {
            return None;
        }
        match rest.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            _ => {}
        }
        let (name, after) = rest.split_first()?;
        let here = self.modules.get(&at)?;
        let child = [at.clone(), vec![name.clone()]].concat();
        if self.modules.contains_key(&child) && !after.is_empty() {
            return self.definition(&child, &[vec!["self".to_owned()], after.to_vec()].concat(), depth + 1);
        }
        if self.modules.contains_key(&child) {
            return None;
        }
        if let Some(target) = here.imports.get(name) {
            let whole = [target.clone(), after.to_vec()].concat();
            return if whole == *path { None } else { self.definition(&at, &whole, depth + 1) };
        }
        if here.items.contains(name) {
            return Some((here.file.clone(), name.clone()));
        }
        here.globs.iter().find_map(|glob| {
            let whole = [glob.clone(), rest.to_vec()].concat();
            if whole == *path { None } else { self.definition(&at, &whole, depth + 1) }
        })
    }
}

impl Module {
    fn join(&mut self, other: Self) {
        self.file = other.file;
        self.items.extend(other.items);
        self.imports.extend(other.imports);
        self.globs.extend(other.globs);
        self.paths.extend(other.paths);
    }

    fn read_use(&mut self, tree: &UseTree, before: Names) {
        let with = |name: &syn::Ident| [before.clone(), vec![name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.read_use(&path.tree, with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.read_use(tree, before.clone())),
            UseTree::Glob(_) => self.globs.push(before),
            UseTree::Name(name) if name.ident == "self" => {
                if let Some(last) = before.last() {
                    self.imports.insert(last.clone(), before);
                }
            }
            UseTree::Name(name) => self.import(name.ident.to_string(), with(&name.ident)),
            UseTree::Rename(rename) => {
                let target = if rename.ident == "self" { before.clone() } else { with(&rename.ident) };
                self.import(rename.rename.to_string(), target);
            }
        }
    }

    fn import(&mut self, name: String, target: Names) {
        self.paths.push(target.clone());
        self.imports.insert(name, target);
    }
}

/// Circles of files, largest first: each file of one is used, by way of others, by each other one.
pub(super) fn circles(uses: &Uses) -> Vec<Vec<PathBuf>> {
    let files: BTreeSet<_> = uses.keys().flat_map(|(from, to)| [from, to]).collect();
    let reach = |start: &PathBuf| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(file) = open.pop() {
            for (_, to) in uses.keys().filter(|(from, _)| from == file) {
                if seen.insert(to) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<_, _> = files.iter().map(|file| (*file, reach(file))).collect();
    let mut found = BTreeSet::new();
    for (file, seen) in &reached {
        if seen.contains(*file) {
            let circle: Vec<_> = seen
                .iter()
                .filter(|other| reached[**other].contains(*file))
                .map(|one| (*one).clone())
                .collect();
            found.insert(circle);
        }
    }
    let mut found: Vec<_> = found.into_iter().filter(|circle| circle.len() > 1).collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

/// Collects the paths in items, those in the arguments of macros included.
struct Paths<'a>(&'a mut Vec<Names>);

impl<'a> Visit<'a> for Paths<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, one: &'a syn::Macro) {
        self.visit_path(&one.path);
        self.tokens(one.tokens.clone());
    }
}

impl Paths<'_> {
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 || path.is_empty() => {
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(one) if one.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.0.push(std::mem::take(&mut path));
                    colons = 0;
                    match other {
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        TokenTree::Ident(name) => path.push(name.to_string()),
                        _ => {}
                    }
                }
            }
        }
        self.0.push(path);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(one) => &one.attrs,
        Item::Fn(one) => &one.attrs,
        Item::Impl(one) => &one.attrs,
        Item::Use(one) => &one.attrs,
        Item::Struct(one) => &one.attrs,
        Item::Const(one) => &one.attrs,
        _ => &[],
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        meta => meta.path().is_ident("test"),
    })
}

fn names_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(one) => one.ident.to_string(),
        Item::Enum(one) => one.ident.to_string(),
        Item::Fn(one) => one.sig.ident.to_string(),
        Item::Static(one) => one.ident.to_string(),
        Item::Struct(one) => one.ident.to_string(),
        Item::Trait(one) => one.ident.to_string(),
        Item::Type(one) => one.ident.to_string(),
        Item::Union(one) => one.ident.to_string(),
        Item::Macro(one) => one.ident.as_ref()?.to_string(),
        _ => return None,
    })
}
