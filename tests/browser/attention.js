"use strict";
/* Checks the page of `mt translate --attention`: see check.py. */
checkAttention(document.getElementById("attention"), sentences.length);
finish();
