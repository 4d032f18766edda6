//! The off-CPU flame graph of the page, as nested boxes that need no script. The width of a box is its share
//! of the time that waits spent off the processor.
//!
//! The levels are all waits, the kind of wait, the operation, the frames from the outermost one to the
//! function that waits, and the site. The recorder samples stacks, so the time of the waits at a site is
//! divided in proportion to the time of its sampled waits.

use super::html::escape;
use crate::WaitClass;
use crate::analyze::{Analysis, StackRow, WaitRow};
use std::cmp::Reverse;
use std::fmt::Write;

/// A box narrower than one of this number of parts of the graph is left out: it has less than a pixel.
const NARROWEST: u128 = 1000;

/// A box and the boxes below it.
#[derive(Debug, Default)]
struct Node {
    name: String,
    /// Class of the style sheet, which selects the color.
    class: &'static str,
    /// Time of the waits off the processor.
    ns: u64,
    children: Vec<Node>,
}

/// The boxes that were left out.
#[derive(Debug, Default)]
struct Rest {
    count: u64,
    ns: u64,
}

/// Returns the section of the page below its heading.
pub(super) fn section(analysis: &Analysis) -> String {
    let root = tree(&analysis.waits);
    if root.ns == 0 {
        return "<p>No wait off the processor was recorded.</p>".into();
    }
    let mut out = String::from(
        "<p class=\"soft\">Width: share of the time that waits spent off the processor. Levels: all waits, \
         kind of wait, operation, stack, site.</p>",
    );
    out += &sampled(analysis);
    if analysis.waits.iter().any(|row| row.cpu_ns.is_none()) {
        out += "<p class=\"soft\">The CPU time is not known, so the time of a wait includes it.</p>";
    }
    let mut rest = Rest::default();
    out += "<div class=\"flame\">";
    write_node(&root, root.ns, root.ns, &mut out, &mut rest);
    out += "</div>";
    if rest.count > 0 {
        let _ = write!(
            out,
            "<p class=\"soft\">Boxes narrower than 0.1 % are left out: {}, with {}.</p>",
            rest.count,
            measure(rest.ns, root.ns)
        );
    }
    out
}

/// Returns a sentence about the sample of stacks.
fn sampled(analysis: &Analysis) -> String {
    let all: u64 = analysis.waits.iter().map(|row| row.count).sum();
    let stacks: u64 = analysis.waits.iter().flat_map(|row| &row.stacks).map(|stack| stack.count).sum();
    let sentence = match stacks {
        0 => "The recording has no call stacks of waits.".to_owned(),
        _ => format!(
            "Stacks were recorded for {stacks} of {all} waits, and divide the time of each site. The \
             outermost frames of deep stacks are missing."
        ),
    };
    format!("<p class=\"soft\">{sentence}</p>")
}

/// Returns the box of all waits. The net times of the rows add up, so no time is in two boxes of a level.
fn tree(rows: &[WaitRow]) -> Node {
    let mut root = Node { name: "all waits".into(), class: "all", ..Node::default() };
    for row in rows {
        let ns = row.net_ns.saturating_sub(row.cpu_ns.unwrap_or(0));
        if ns == 0 {
            continue;
        }
        let (kind, class) = match row.kind.map(|kind| (kind.name(), kind.class())) {
            Some((name, WaitClass::Lock)) => (name, "lock"),
            Some((name, WaitClass::Io)) => (name, "io"),
            Some((name, WaitClass::Idle)) => (name, "idle"),
            None => ("unknown kind", "all"),
        };
        root.ns += ns;
        let by_kind = child(&mut root, kind, class);
        by_kind.ns += ns;
        let operation = child(by_kind, &row.operation, class);
        operation.ns += ns;
        for (stack, ns) in divided(&row.stacks, ns) {
            let mut node = &mut *operation;
            for name in stack.iter().rev().chain([&row.site]) {
                node = child(node, name, class);
                node.ns += ns;
            }
        }
    }
    sort(&mut root);
    root
}

/// Divides the time of the waits in a row among its stacks.
fn divided(stacks: &[StackRow], ns: u64) -> Vec<(&[String], u64)> {
    let all: u128 = stacks.iter().map(|stack| u128::from(stack.net_ns)).sum();
    if all == 0 {
        return vec![(&[], ns)];
    }
    let (mut sum, mut before) = (0, 0);
    let mut part = |stack: &StackRow| {
        // The sums are rounded, so that the parts add up to the whole.
        sum += u128::from(stack.net_ns);
        let until = (u128::from(ns) * sum / all) as u64;
        until - std::mem::replace(&mut before, until)
    };
    stacks.iter().map(|stack| (stack.frames.as_slice(), part(stack))).filter(|(_, ns)| *ns > 0).collect()
}

/// Returns the box with this name below a box.
fn child<'n>(node: &'n mut Node, name: &str, class: &'static str) -> &'n mut Node {
    let at = node.children.iter().position(|child| child.name == name).unwrap_or_else(|| {
        node.children.push(Node { name: name.to_owned(), class, ..Node::default() });
        node.children.len() - 1
    });
    &mut node.children[at]
}

/// Sorts the boxes of each level, the widest first.
fn sort(node: &mut Node) {
    node.children.sort_by(|a, b| (Reverse(a.ns), &a.name).cmp(&(Reverse(b.ns), &b.name)));
    node.children.iter_mut().for_each(sort);
}

/// Writes a box. Its width is a part of the width of the box above it, of `above` ns.
fn write_node(node: &Node, above: u64, all: u64, out: &mut String, rest: &mut Rest) {
    if u128::from(node.ns) * NARROWEST < u128::from(all) {
        rest.count += 1;
        rest.ns += node.ns;
        return;
    }
    // Rounded down, so the boxes of a level never exceed the box above them.
    let width = u128::from(node.ns) * 1_000_000 / u128::from(above.max(1));
    let (whole, part) = (width / 10_000, width % 10_000);
    let name = escape(&node.name);
    let _ = write!(
        out,
        "<div class=\"box\" style=\"width:{whole}.{part:04}%\"><span class=\"{}\" title=\"{name}: {}\">{name}\
         </span>",
        node.class,
        measure(node.ns, all)
    );
    if !node.children.is_empty() {
        *out += "<div class=\"level\">";
        node.children.iter().for_each(|child| write_node(child, node.ns, all, out, rest));
        *out += "</div>";
    }
    *out += "</div>";
}

/// Returns a time in milliseconds, and its share of all waits.
fn measure(ns: u64, all: u64) -> String {
    let share = ns as f64 / all.max(1) as f64;
    format!("{:.3} ms, {:.2} % of all waits", ns as f64 / 1e6, share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WaitKind;

    fn row(operation: &str, site: &str, kind: WaitKind, net_ns: u64, cpu_ns: Option<u64>) -> WaitRow {
        let (operation, site, kind) = (operation.to_owned(), site.to_owned(), Some(kind));
        let (gross_ns, per_execution_ns) = (net_ns, net_ns as f64);
        WaitRow {
            operation,
            site,
            kind,
            count: 1,
            net_ns,
            gross_ns,
            cpu_ns,
            longest_ns: net_ns,
            per_execution_ns,
            stacks: Vec::new(),
            slices: Vec::new(),
        }
    }

    #[test]
    fn the_time_of_a_site_is_divided_among_the_sampled_stacks() {
        let stack = |frames: &[&str], net_ns| StackRow {
            frames: frames.iter().map(|frame| (*frame).to_owned()).collect(),
            count: 1,
            net_ns,
            share: 0.0,
        };
        let stacks = vec![stack(&["lock", "pay", "main"], 2), stack(&["lock", "draw", "main"], 1)];
        let root = tree(&[WaitRow { stacks, ..row("teller", "account", WaitKind::Latch, 1_000, None) }]);
        let main = &root.children[0].children[0].children[0];
        assert_eq!((&*main.name, main.ns, root.ns), ("main", 1_000, 1_000));
        let callers: Vec<(&str, u64)> = main.children.iter().map(|node| (&*node.name, node.ns)).collect();
        assert_eq!(callers, [("pay", 666), ("draw", 334)]);
        let lock = &main.children[0].children[0];
        assert_eq!((&*lock.name, &*lock.children[0].name, lock.children[0].ns), ("lock", "account", 666));
        check_widths(&root);
    }

    /// Checks the widths below a box: the text is that of [`write_node`].
    fn check_widths(node: &Node) {
        let width = |child: &Node| {
            let (mut out, mut rest) = (String::new(), Rest::default());
            write_node(child, node.ns, child.ns, &mut out, &mut rest);
            let (_, text) = out.split_once("width:").expect("a width");
            text.split_once('%').expect("per cent").0.parse::<f64>().expect("a number")
        };
        assert!(node.children.iter().map(|child| child.ns).sum::<u64>() <= node.ns);
        assert!(node.children.iter().map(width).sum::<f64>() < 100.000_001, "{node:?}");
        node.children.iter().for_each(check_widths);
    }

    #[test]
    fn the_boxes_of_a_level_are_at_most_as_wide_as_the_box_above() {
        let rows = [
            row("get", "cache", WaitKind::Latch, 1_000_001, Some(300)),
            row("put", "cache", WaitKind::Latch, 333_333, Some(7)),
            row("put", "tree", WaitKind::Latch, 333_334, Some(0)),
            row("put", "disk", WaitKind::Device, 77, Some(0)),
            row("put", "spin", WaitKind::Latch, 500, Some(600)),
        ];
        let root = tree(&rows);
        assert_eq!(root.ns, 999_701 + 333_326 + 333_334 + 77, "CPU time of waits is not off the processor");
        let names: Vec<&str> = root.children.iter().map(|child| child.name.as_str()).collect();
        assert_eq!(names, ["latch", "device"]);
        let latch: Vec<&str> = root.children[0].children.iter().map(|child| child.name.as_str()).collect();
        assert_eq!(latch, ["get", "put"]);
        check_widths(&root);
        let (mut out, mut rest) = (String::new(), Rest::default());
        write_node(&root, root.ns, root.ns, &mut out, &mut rest);
        assert_eq!((rest.count, rest.ns), (1, 77), "the narrow box, with the boxes below it");
        assert!(!out.contains("disk"), "{out}");
        assert!(out.contains("title=\"tree: 0.333 ms, 20.00 % of all waits\""), "{out}");
    }

    #[test]
    fn the_children_of_a_box_with_a_large_time_do_not_overflow() {
        let rows = [
            row("get", "cache", WaitKind::Latch, u64::MAX / 2, None),
            row("put", "cache", WaitKind::Latch, u64::MAX / 2, None),
        ];
        check_widths(&tree(&rows));
    }
}
