"""Masking: secrets go, whatever quotes them; everything else stays as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.masking import masked, masked_value

SECRET = "hunter2-Q9z"

QUOTED = [
    "password=@",
    "Failed: kafka.ssl.truststore.password=@, kafka.group.id=g",
    "options: Map(user -> u, password -> @, dbtable -> t)",
    "{'kafka.sasl.password': '@', 'subscribe': 't'}",
    '{"fs.s3a.secret.key": "@"}',
    "[('spark.authenticate.secret', '@'), ('spark.app.name', 'a')]",
    "fs.azure.account.key.store.dfs.core.windows.net=@ is no key",
    "jdbc:postgresql://db.example:5432/shop?user=u&password=@&ssl=true",
    "jdbc:sqlserver://db.example:1433;user=u;password=@;encrypt=true",
    "jdbc:oracle:thin:scott/@@//db.example:1521/x",
    "could not connect to postgres://u:@@db.example/shop",
    "https://@@example.org/repository",
    "https://x.blob.core.windows.net/c?sv=1&sig=@&se=2",
    "Authorization: Bearer @",
    'kafka.sasl.jaas.config=a.PlainLoginModule required username="u" password="@";',
    "kafka.sasl.jaas.config -> a.ScramLoginModule required username='u' password='x @';",
    "'sasl.jaas.config': 'a.OAuthBearerLoginModule required clientSecret=\"@\";'",
    "API_KEY: @",
    "fs.s3a.access.key = @",
    "-----BEGIN RSA PRIVATE KEY-----\nMII@\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("template", QUOTED)
def test_a_secret_is_masked_wherever_it_is_quoted(template: str) -> None:
    shown = masked(template.replace("@", SECRET, 1))
    assert SECRET not in shown
    assert "***" in shown


@given(
    st.sampled_from(QUOTED[:13]),
    st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-!$%*+", min_size=12),
)
def test_no_secret_of_ordinary_characters_shows_and_masking_again_changes_nothing(
    template: str, secret: str
) -> None:
    text = template.replace("@", secret, 1)
    shown = masked(text)
    assert secret not in shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            f"at postgres://u:{SECRET}@h:5432/d?sslmode=on",
            "at postgres://u:***@h:5432/d?sslmode=on",
        ),
        (f"password={SECRET}, group=g", "password=***, group=g"),
        ("key AKIAABCDEFGHIJKLMNOP is unknown", "key *** is unknown"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.c2ln is old", "token *** is old"),
    ],
)
def test_what_stands_around_a_secret_stays(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: invalid literal for int() with base 10: 'seven'",
        "Step 'parse' has key=user: name a column, or a tuple of columns.",
        "[UNRESOLVED_COLUMN] A column with name `token` cannot be resolved.",
        "TokenMgrError: Lexical error at line 1, column 3",
        "java.net.ConnectException: Connection refused: /127.0.0.1:9092",
        "abfss://container@account.dfs.core.windows.net/path does not exist",
        "http://127.0.0.1:4040/jobs and hdfs://name:8020/a@b",
        "s3a://bucket/dir/part-0001.parquet at 12:30:05",
        "Authentication failed due to invalid credentials with SASL mechanism",
    ],
)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert masked(text) == text


def test_the_value_of_a_setting_is_judged_by_its_name() -> None:
    assert masked_value("spark.authenticate.secret", SECRET) == "***"
    assert masked_value("kafka.sasl.jaas.config", SECRET) == "***"
    assert masked_value("spark.executor.memory", "1g") == "1g"
    assert masked_value("url", f"jdbc:x://h/d?password={SECRET}") == "jdbc:x://h/d?password=***"
