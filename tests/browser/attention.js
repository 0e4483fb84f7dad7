"use strict";
/* Checks the page of `mt translate --attention`: see check.py. */
checkAttention(document.getElementById("attention"), sentences.length);
check(["«שלום»", "123 مرحبا abc"].every(text => direction(text) === "rtl"), "right-to-left text is not known");
check(["The ش", "12", ""].every(text => direction(text) === "ltr"), "left-to-right text is not known");
finish();
