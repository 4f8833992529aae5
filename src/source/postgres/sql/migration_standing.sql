-- Is the schema there, and the table that remembers migrations? Reads the catalogue alone.
select to_regnamespace('{schema_text}') is not null,
       to_regclass('{schema_text}.migration') is not null
