//! A table of people and an index by city, kept consistent by transactions.
//!
//! The index is a multimap table, which has the ids of all people of a city.
//!
//! Run: `cargo run --release -p azekura --example secondary_index`

use azekura::{Database, Error, MultimapTableDefinition, Serde, TableDefinition, Transaction};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Person {
    name: String,
    city: String,
}

const PEOPLE: TableDefinition<u64, Serde<Person>> = TableDefinition::new("people");
const BY_CITY: MultimapTableDefinition<str, u64> = MultimapTableDefinition::new("people_by_city");

fn main() -> Result<(), Error> {
    let db = Database::in_memory()?;
    for (id, name, city) in
        [(1, "Aoi", "Nara"), (2, "Ren", "Kyoto"), (3, "Yui", "Nara"), (4, "Sora", "Nagoya")]
    {
        db.transact(|tx| save(tx, id, &Person { name: name.into(), city: city.into() }))?;
    }
    println!("in Nara:  {:?}", names_in(&db, "Nara")?);

    // Sora moves: the row and both index entries change together, or not at all.
    db.transact(|tx| save(tx, 4, &Person { name: "Sora".into(), city: "Nara".into() }))?;
    println!("one more: {:?}", names_in(&db, "Nara")?);
    assert_eq!(names_in(&db, "Nara")?, ["Aoi", "Yui", "Sora"]);
    assert!(names_in(&db, "Nagoya")?.is_empty());
    Ok(())
}

/// Inserts or changes a person, and the index with it.
fn save(tx: &Transaction, id: u64, person: &Person) -> Result<(), Error> {
    let by_city = tx.multimap_table(&BY_CITY)?;
    if let Some(old) = tx.table(&PEOPLE)?.replace(&id, person)? {
        by_city.remove(&old.city, &id)?;
    }
    by_city.insert(&person.city, &id).map(drop)
}

/// Returns the names of the people of a city, in order of their ids.
fn names_in(db: &Database, city: &str) -> Result<Vec<String>, Error> {
    db.read(|snapshot| {
        let people = snapshot.table(&PEOPLE)?;
        let mut names = Vec::new();
        for id in snapshot.multimap_table(&BY_CITY)?.get(city) {
            names.extend(people.get(&id?)?.map(|person| person.name));
        }
        Ok(names)
    })
}
