//! SQL: tables in a database of `SQLite`'s that is in memory alone.

use std::fmt;

use rusqlite::limits::Limit;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use crate::answer::{Answer, Cell};
use crate::tables::{Table, Values};

/// Why a query has no answer; one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError(String);

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QueryError {}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> QueryError {
        // A statement that cannot be read is said with itself, which its writer knows.
        QueryError(match error {
            rusqlite::Error::SqlInputError { msg, .. } => msg,
            rusqlite::Error::MultipleStatement => "a query is one statement".to_owned(),
            error => error.to_string(),
        })
    }
}

/// Tables that can be asked.
pub struct Database(Connection);

impl Database {
    /// A database of these tables. A query can change nothing and reach no file.
    pub fn of(tables: &[Table]) -> Result<Database, QueryError> {
        let mut connection = Connection::open_in_memory()?;
        for table in tables {
            fill(&mut connection, table)?;
        }
        connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        connection.execute_batch("PRAGMA query_only = ON")?;
        Ok(Database(connection))
    }

    /// What a SELECT comes to.
    pub fn ask(&self, query: &str) -> Result<Answer, QueryError> {
        let mut statement = self.0.prepare(query)?;
        if !statement.readonly() || statement.column_count() == 0 {
            return Err(QueryError("a query is a SELECT: nothing can be changed".to_owned()));
        }
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let count = columns.len();
        let mut answer = Answer { columns, rows: Vec::new() };
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let cells = (0..count).map(|at| Ok(cell(row.get_ref(at)?)));
            answer.rows.push(cells.collect::<Result<_, rusqlite::Error>>()?);
        }
        Ok(answer)
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Empty,
        ValueRef::Integer(number) => Cell::Whole(number),
        ValueRef::Real(number) => Cell::Real(number),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Cell::Text(String::from_utf8_lossy(bytes).into_owned())
        }
    }
}

/// One place of a table, as the database takes it.
struct Place<'a>(&'a Values, usize);

impl ToSql for Place<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value = match self.0 {
            Values::Whole(values) => values[self.1].map_or(ValueRef::Null, ValueRef::Integer),
            Values::Text(values, texts) => values[self.1]
                .map_or(ValueRef::Null, |number| ValueRef::Text(texts[number as usize].as_bytes())),
        };
        Ok(ToSqlOutput::Borrowed(value))
    }
}

fn fill(connection: &mut Connection, table: &Table) -> Result<(), QueryError> {
    let described = table.columns.iter().map(|column| match column.values {
        Values::Whole(_) => format!("{} INTEGER", column.name),
        Values::Text(..) => format!("{} TEXT", column.name),
    });
    let described = described.collect::<Vec<_>>().join(", ");
    let marks = vec!["?"; table.columns.len()].join(", ");
    let transaction = connection.transaction()?;
    transaction.execute_batch(&format!("CREATE TABLE {} ({described})", table.name))?;
    {
        let insert = format!("INSERT INTO {} VALUES ({marks})", table.name);
        let mut insert = transaction.prepare(&insert)?;
        for at in 0..table.len() {
            let places = table.columns.iter().map(|column| Place(&column.values, at));
            insert.execute(params_from_iter(places))?;
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Column;

    fn database() -> Database {
        let bytes = Values::Whole(vec![Some(512), None, Some(2048)]);
        let kinds = Values::Text(vec![Some(0), Some(1), Some(0)], vec!["a".into(), "b".into()]);
        let columns = vec![
            Column { name: "bytes", values: bytes },
            Column { name: "category", values: kinds },
        ];
        Database::of(&[Table { name: "blocks", columns }]).expect("a database")
    }

    #[test]
    fn tables_are_asked() {
        let asked = "SELECT category, sum(bytes) AS bytes FROM blocks GROUP BY 1 ORDER BY 1";
        let answer = database().ask(asked).expect("an answer");
        assert_eq!(answer.columns, ["category", "bytes"]);
        let a = vec![Cell::Text("a".into()), Cell::Whole(2560)];
        assert_eq!(answer.rows, [a, vec![Cell::Text("b".into()), Cell::Empty]]);
    }

    #[test]
    fn a_query_changes_nothing_and_reaches_no_file() {
        let database = database();
        let out = std::env::temp_dir().join("larder-query-reaches-no-file.db");
        let attach = format!("ATTACH '{}' AS other", out.display());
        let vacuum = format!("VACUUM INTO '{}'", out.display());
        for query in ["DELETE FROM blocks", "CREATE TABLE x (y)", "", &attach, &vacuum] {
            assert!(database.ask(query).is_err(), "{query}");
        }
        let twice = database.ask("SELECT 1; SELECT 2").expect_err("two");
        assert_eq!(twice.to_string(), "a query is one statement");
        let wrong = database.ask("SELECT nothing FROM blocks").expect_err("no such column");
        assert_eq!(wrong.to_string(), "no such column: nothing");
        assert!(!out.exists());
        let count = database.ask("SELECT count(*) FROM blocks").expect("they are there");
        assert_eq!(count.rows, [[Cell::Whole(3)]]);
    }
}
