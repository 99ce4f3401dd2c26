"""The server's tables, and how a database of an earlier version becomes one of this version.

What each table is trusted for is noted beside it. Nothing here can be read as a sample: statistics
are in sealed files (`ledger`, `subledgers`) or sealed rows (`journal`); subjects of orders and
salts are sealed too; commitments are salted.
"""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    """
    -- One row: who we are, and where we stand.
    CREATE TABLE state (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        federation TEXT NOT NULL,
        key TEXT NOT NULL,                -- id of the key that signs now
        spec TEXT NOT NULL,               -- canonical JSON of the current spec
        solver TEXT NOT NULL,
        round INTEGER NOT NULL,           -- number of the last round
        time INTEGER NOT NULL,            -- the latest time stamped: times never go back
        generation INTEGER NOT NULL,      -- of the journal, now being written
        salt BLOB NOT NULL,               -- of the current digests, sealed under the generation's key
        ledger_digest TEXT NOT NULL,      -- salted: the current one
        head_digest TEXT NOT NULL         -- salted; empty if there is no head
    );
    -- Truth: enrolled keys and the last sequence number of each.
    CREATE TABLE actors (
        name TEXT PRIMARY KEY,
        role TEXT NOT NULL,
        key TEXT NOT NULL UNIQUE,
        status TEXT NOT NULL,             -- active, must-rejoin, barred, gone
        sequence INTEGER NOT NULL,
        enrolled INTEGER NOT NULL,
        token TEXT NOT NULL               -- SHA-256 of the secret it enrolled with
    ) WITHOUT ROWID;
    CREATE TABLE tokens (
        digest TEXT PRIMARY KEY,          -- SHA-256 of the secret
        name TEXT NOT NULL,
        role TEXT NOT NULL,
        expires INTEGER NOT NULL
    ) WITHOUT ROWID;
    -- Truth: what was answered, so that the same request again gets the same answer. Receipts are evidence.
    CREATE TABLE answers (
        actor TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        request TEXT NOT NULL,            -- digest of the request; covers a nonce
        answer BLOB NOT NULL,
        PRIMARY KEY (actor, sequence)
    ) WITHOUT ROWID;
    -- Truth: which samples are retained, by salted commitments.
    CREATE TABLE commitments (
        client TEXT NOT NULL,
        commitment BLOB NOT NULL,
        PRIMARY KEY (client, commitment)
    ) WITHOUT ROWID;
    -- Truth: the ledger up to a position of the journal, and each client's share of it up to its last fold.
    CREATE TABLE ledger (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        position INTEGER NOT NULL,
        slot INTEGER NOT NULL,
        file TEXT NOT NULL
    );
    CREATE TABLE subledgers (
        client TEXT PRIMARY KEY,
        slot INTEGER NOT NULL,
        file TEXT NOT NULL,
        account BLOB NOT NULL             -- sealed
    ) WITHOUT ROWID;
    -- Truth until folded: messages not yet in the files above, sealed under a key that is destroyed with them.
    CREATE TABLE journal (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        generation INTEGER NOT NULL,
        client TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        kind TEXT NOT NULL,
        added INTEGER NOT NULL,
        deleted INTEGER NOT NULL,
        time INTEGER NOT NULL,
        sealed BLOB,                      -- one of these two
        file TEXT
    );
    CREATE INDEX journal_by_client ON journal (client, position);
    CREATE TABLE generations (
        generation INTEGER PRIMARY KEY,
        slot INTEGER NOT NULL
    );
    -- Evidence: the audit log, its complete subtrees, and where erasures at rest were logged.
    CREATE TABLE log (position INTEGER PRIMARY KEY, entry BLOB NOT NULL);
    CREATE TABLE nodes (
        level INTEGER NOT NULL,
        position INTEGER NOT NULL,
        hash BLOB NOT NULL,
        PRIMARY KEY (level, position)
    ) WITHOUT ROWID;
    CREATE TABLE erasures (generation INTEGER PRIMARY KEY, position INTEGER NOT NULL);
    CREATE TABLE amendments (number INTEGER PRIMARY KEY, envelope BLOB NOT NULL);
    CREATE TABLE rotations (number INTEGER PRIMARY KEY, envelope BLOB NOT NULL);
    -- Truth: erasure orders; who the subject is stays sealed until the order is closed.
    CREATE TABLE orders (
        id TEXT PRIMARY KEY,
        filed INTEGER NOT NULL,
        deadline INTEGER NOT NULL,
        completed INTEGER,
        closed INTEGER,
        slot INTEGER,
        sealed BLOB
    ) WITHOUT ROWID;
    CREATE TABLE order_clients (
        order_id TEXT NOT NULL,
        client TEXT NOT NULL,
        found INTEGER,                    -- NULL: no answer yet
        sequence INTEGER,                 -- of the request that answered; NULL if the client was forgotten or had left
        time INTEGER,
        PRIMARY KEY (order_id, client)
    ) WITHOUT ROWID;
    CREATE TABLE order_entries (
        order_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (order_id, position)
    ) WITHOUT ROWID;
    CREATE TABLE audits (
        id TEXT PRIMARY KEY,
        started INTEGER NOT NULL,
        finished INTEGER,
        result TEXT,
        position INTEGER,                 -- in the log, when finished
        slot INTEGER,
        salt BLOB                         -- sealed
    ) WITHOUT ROWID;
    CREATE TABLE audit_clients (
        audit_id TEXT NOT NULL,
        client TEXT NOT NULL,
        equal INTEGER,                    -- NULL: no answer yet
        count INTEGER,
        PRIMARY KEY (audit_id, client)
    ) WITHOUT ROWID;
    """,
    """
    -- When an actor last synced: who has stopped is the question behind every overdue order.
    ALTER TABLE actors ADD COLUMN seen INTEGER;
    """,
    """
    -- Evidence: rounds of secure aggregation by their place in the log, the spec of each, and which requests each has applied.
    CREATE TABLE aggregations (position INTEGER PRIMARY KEY, spec TEXT NOT NULL);
    CREATE TABLE members (
        client TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (client, sequence)
    ) WITHOUT ROWID;
    -- Truth: clients that are to be forgotten, and whose samples are in the ledger until the others have rebuilt it.
    CREATE TABLE rebuilds (client TEXT PRIMARY KEY) WITHOUT ROWID;
    -- Who was in rounds whose sums clients were asked to unmask, and which have not been applied.
    CREATE TABLE attempts (
        aggregation TEXT NOT NULL,
        client TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        PRIMARY KEY (aggregation, client)
    );
    """,
    """
    -- What officers call an order in their own files; not personal, and kept when the order is closed.
    ALTER TABLE orders ADD COLUMN reference TEXT NOT NULL DEFAULT '';
    """,
    """
    -- Of an attempt: how long others have waited for its clients, as stamped and by the clock, which may be behind that;
    -- whether its sum was accepted; which parts of it hid nobody.
    ALTER TABLE attempts ADD COLUMN since INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE attempts ADD COLUMN accepted INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE attempts ADD COLUMN exposed INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE attempts ADD COLUMN clock INTEGER NOT NULL DEFAULT 0;
    -- False sums, and what their clients opened for the arbiter.
    CREATE TABLE disputes (
        aggregation TEXT PRIMARY KEY,
        reason TEXT NOT NULL,
        slot INTEGER NOT NULL,
        records BLOB NOT NULL
    );
    CREATE TABLE openings (
        aggregation TEXT NOT NULL,
        client TEXT NOT NULL,
        sealed BLOB NOT NULL,
        PRIMARY KEY (aggregation, client)
    ) WITHOUT ROWID;
    -- Of clients whose sums wait: when they spoke and joined last in rounds, and since when they come for that again and again.
    ALTER TABLE actors ADD COLUMN spoke INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE actors ADD COLUMN joined INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE actors ADD COLUMN present INTEGER NOT NULL DEFAULT 0;
    -- What the current digest of the ledger is of ("sums" or "samples"), and what the next one that binds samples builds on:
    -- sealed under the generation's key. Empty where it is not known, as in a database of before: then it is made anew.
    ALTER TABLE state ADD COLUMN binds TEXT NOT NULL DEFAULT 'sums';
    ALTER TABLE state ADD COLUMN basis BLOB NOT NULL DEFAULT x'';
    -- Orders by their place in the log, and those that a client has yet to answer: however many are complete.
    ALTER TABLE orders ADD COLUMN position INTEGER NOT NULL DEFAULT -1;
    ALTER TABLE order_clients ADD COLUMN position INTEGER NOT NULL DEFAULT -1;
    UPDATE orders SET position = coalesce((SELECT min(position) FROM order_entries WHERE order_id = id), -1);
    UPDATE order_clients SET position = coalesce((SELECT position FROM orders WHERE id = order_id), -1);
    CREATE INDEX orders_by_position ON orders (position, id, closed, completed, deadline, slot);
    CREATE INDEX orders_of_client ON order_clients (client, position, order_id) WHERE found IS NULL;
    -- How many orders that are not closed an answer is evidence of: the others are dropped once they have arrived.
    ALTER TABLE answers ADD COLUMN orders INTEGER NOT NULL DEFAULT 0;
    UPDATE answers SET orders = answering.number FROM (
        SELECT client, sequence, count(*) AS number FROM order_clients JOIN orders ON order_id = id
        WHERE closed IS NULL AND sequence > 0 GROUP BY client, sequence
    ) AS answering WHERE actor = answering.client AND answers.sequence = answering.sequence;
    CREATE INDEX answers_of_no_order ON answers (actor, sequence) WHERE orders = 0;
    """,
)

# Migrations up to this one are of released versions, and are never edited: 4 of 0.1.0. What a release
# needs beyond the one before it is one migration, which grows until that release.
RELEASED = 4
